"""What tools do with bad files and kills. `benchmarks.faults` runs all of them."""
