"""Prefect flows, one per file, with the checks and the form that only flows need."""
