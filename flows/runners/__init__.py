"""Where shards run: on this machine, or on a Ray cluster."""
