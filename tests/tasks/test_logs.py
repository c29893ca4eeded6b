"""Logs are sent to Prefect before a process ends."""

import asyncio
import gc
import warnings

from batchmill.tasks.shard import send
from prefect.logging.handlers import APILogWorker


def test_logs_are_sent_while_an_event_loop_runs():
    """In a notebook, the kernel's event loop always runs."""

    async def cell():
        send(APILogWorker)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(cell())
        gc.collect()
    assert [str(warning.message) for warning in caught] == []
