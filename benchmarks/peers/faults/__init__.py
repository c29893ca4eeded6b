"""Tools, bad files and kills. `benchmarks.faults` shows what happens to the good files."""
