"""New data: watch a folder or bucket, and announce the files that arrive."""
