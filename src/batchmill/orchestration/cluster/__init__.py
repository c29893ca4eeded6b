"""Run shards on Ray: connect to it, check its nodes, and submit shards as task runs."""
