"""Executes the inputs of one shard in DataLoader workers, isolated from each other."""
