"""Steps that come with batchmill; each module needs no more than its own extra."""
