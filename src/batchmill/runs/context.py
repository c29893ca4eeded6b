"""Passes data between the caller of a run and its flow, in one process."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from batchmill.planning.job import Job
from batchmill.planning.prepare import Prepared, prepare


@dataclass
class RunContext:
    """Data that the caller of a run and its flow share.

    The caller sets `prepared`. The flow sets the number of the `run` and the number of `task_runs`.
    """

    prepared: Prepared
    run: int = 0
    task_runs: int = 0


# The caller prepares the job before it starts the flow, so the flow need not prepare it again.
_handover: ContextVar[RunContext | None] = ContextVar("handover", default=None)


@contextmanager
def handing_over(prepared: Prepared) -> Iterator[RunContext]:
    """Make `prepare_once` return `prepared` for its job during the block."""
    handover = RunContext(prepared)
    token = _handover.set(handover)
    try:
        yield handover
    finally:
        _handover.reset(token)


def prepare_once(job: Job) -> Prepared:
    """Return the caller's prepared job if it is the same job; otherwise prepare the job."""
    handover = _handover.get()
    return handover.prepared if handover and handover.prepared.job == job else prepare(job)


def report_run(run: int) -> None:
    """Report the number of the run to the caller of the flow."""
    handover = _handover.get()
    if handover:
        handover.run = run


def report_task_runs(count: int) -> None:
    """Report the number of task runs to the caller of the flow."""
    handover = _handover.get()
    if handover:
        handover.task_runs = count
