"""Artifacts and events of a run in Prefect."""
