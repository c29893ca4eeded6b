"""A run on Prefect and Ray: runners, servers, signals, display, new data."""
