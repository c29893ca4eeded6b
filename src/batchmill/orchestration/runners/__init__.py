"""Schedule the shards of a run, and run them on this machine or on a Ray cluster."""
