"""A run on Prefect and Ray: runners, servers, signals, artifacts, new data."""
