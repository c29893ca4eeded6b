"""One shard: inputs through a DataLoader, isolated from each other, into outcomes."""
