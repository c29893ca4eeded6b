"""The same work in batchmill and in other tools. `benchmarks.compare` runs all of them."""
