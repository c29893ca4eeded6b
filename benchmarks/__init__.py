"""Measurements; see each module. `make bench` runs them."""
