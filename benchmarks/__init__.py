"""Benchmarks: each module is a command. `make bench-full` runs all of them."""
