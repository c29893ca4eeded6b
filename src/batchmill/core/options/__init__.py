"""The options of a job, in groups."""
