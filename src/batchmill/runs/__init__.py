"""One run of a dataset, from its lease to its summary."""
