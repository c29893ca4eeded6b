"""Prefect sends logs to its API in batches, a while later; some processes have not that while."""

from prefect.logging.handlers import APILogWorker

_SECONDS = 5


def send_logs() -> None:
    """Send what this process has logged so far to the Prefect API, now."""
    APILogWorker.drain_all(timeout=_SECONDS, at_exit=False)
