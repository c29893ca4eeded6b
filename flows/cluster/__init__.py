"""Shards on Ray: what its nodes have and could do, and shards as task runs on them."""
