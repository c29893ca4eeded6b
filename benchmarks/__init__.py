"""Benchmarks: each module is a command. `make bench` runs all of them."""
