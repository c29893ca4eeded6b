"""Prefect flows, one per file. The subpackages hold the code that the flows use."""
