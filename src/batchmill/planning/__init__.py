"""What a run has to do: job, change detection, plan, batches and shards."""
