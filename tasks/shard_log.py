"""The log of a shard's task run, and how a process sends its logs and events to Prefect."""

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from prefect.client.schemas.objects import State
from prefect.events.worker import EventsWorker
from prefect.logging import get_run_logger
from prefect.logging.handlers import APILogWorker
from prefect.states import Completed

from batchmill.shards.run_shard import ShardResult
from batchmill.shards.step_log import StepLines

SHOWN_FAILURES = 100


class ShardLog:
    """Writes the inputs that are not ok, and the number of inputs by outcome, to the log."""

    def __init__(self) -> None:
        self._logger: Any = get_run_logger()
        self._failures = 0

    def failure(self, name: str, kind: str, reason: str) -> None:
        """Log an input that is not ok, with the reason. Only the first 100 are logged."""
        self._failures += 1
        if self._failures <= SHOWN_FAILURES:
            self._logger.error("%s: %s: %s", name, kind, reason)

    def step_lines(self, found: StepLines) -> None:
        """Log the lines that a step printed or logged, each after the name of its input."""
        prefix = f"{found.input}: " if found.input else ""
        for line in found.lines:
            known = logging.getLevelNamesMapping().get(line.partition(":")[0], logging.INFO)
            # By default, Prefect drops records below INFO, also those that the user requested.
            self._logger.log(max(known, logging.INFO), "%s%s", prefix, line)

    def end(self, result: ShardResult) -> State[ShardResult]:
        """Log the number of inputs by outcome. Return the final state, which names the failures."""
        counts = ", ".join(f"{count} {kind}" for kind, count in result.outcomes.items())
        self._logger.info("%s in %.1f s", counts, result.seconds)
        inputs = sum(result.outcomes.values())
        failed = inputs - result.outcomes.get("ok", 0)
        what = f"{failed:,} of {inputs:,} inputs failed" if failed else f"{inputs:,} inputs are ok"
        return Completed(message=f"{what}.", data=result)


_SECONDS = 5


def send_logs() -> None:
    """Send the logs of this process to the Prefect API immediately."""
    _drain(APILogWorker)


def send_events() -> None:
    """Send the events of this process, such as the ends of task runs, to the Prefect API."""
    _drain(EventsWorker)


def _drain(worker: type[APILogWorker | EventsWorker]) -> None:
    # If an event loop runs, as in a notebook, `drain_all` only returns a coroutine. No loop runs
    # in a new thread.
    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(worker.drain_all, timeout=_SECONDS, at_exit=False).result()
