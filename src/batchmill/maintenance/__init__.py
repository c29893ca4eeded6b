"""What keeps a dataset true: verify, repair, cleanup, prune, leakage."""
