"""Steps that come with batchmill. Each module needs only its own extra."""
