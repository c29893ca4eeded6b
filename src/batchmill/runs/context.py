"""What a run's caller and its flow hand to each other, within one process."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from batchmill.planning.job import Job, Prepared, prepare


@dataclass
class RunContext:
    """What a run's caller gives to the flow, and the flow to its caller.

    That is the run's number, and how many task runs the flow run has had.
    """

    prepared: Prepared
    run: int = 0
    task_runs: int = 0


# A run's caller checks the job before it starts anything; the flow need not do it again.
_handover: ContextVar[RunContext | None] = ContextVar("handover", default=None)


@contextmanager
def handing_over(prepared: Prepared) -> Iterator[RunContext]:
    """Let `prepare_once` return `prepared` for its job, within the block."""
    handover = RunContext(prepared)
    token = _handover.set(handover)
    try:
        yield handover
    finally:
        _handover.reset(token)


def prepare_once(job: Job) -> Prepared:
    """Do as `prepare` does, unless the caller has handed over what it gave."""
    handover = _handover.get()
    return handover.prepared if handover and handover.prepared.job == job else prepare(job)


def report_run(run: int) -> None:
    """Tell the caller of a flow which run it is."""
    handover = _handover.get()
    if handover:
        handover.run = run


def report_task_runs(count: int) -> None:
    """Tell the caller of a flow how many task runs its flow run has had."""
    handover = _handover.get()
    if handover:
        handover.task_runs = count
