"""One shard: its inputs, its process, its records."""
