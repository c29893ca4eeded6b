"""The same work, done by batchmill and by its peers; `benchmarks.compare` runs them."""
