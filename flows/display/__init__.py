"""What Prefect shows of a run: artifacts and events."""
