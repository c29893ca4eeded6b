"""The Prefect server of a run: find it, or start a temporary one."""
