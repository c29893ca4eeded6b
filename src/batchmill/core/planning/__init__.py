"""Plan a run: job, change detection, plan, batches and shards."""
