"""Send logs to the Prefect API immediately.

Prefect sends logs in batches, with a delay. Some processes end before that.
"""

from prefect.logging.handlers import APILogWorker

_SECONDS = 5


def send_logs() -> None:
    """Send the logs of this process to the Prefect API immediately."""
    APILogWorker.drain_all(timeout=_SECONDS, at_exit=False)
