"""Send logs to the Prefect API immediately.

Prefect sends logs in batches, with a delay. Some processes end before that.
"""

from concurrent.futures import ThreadPoolExecutor

from prefect.logging.handlers import APILogWorker

_SECONDS = 5


def send_logs() -> None:
    """Send the logs of this process to the Prefect API immediately."""
    # If an event loop runs, as in a notebook, `drain_all` only returns a coroutine. No loop runs
    # in a new thread.
    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(APILogWorker.drain_all, timeout=_SECONDS, at_exit=False).result()
