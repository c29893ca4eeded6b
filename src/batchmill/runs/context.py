"""Passes a prepared job from the caller of a flow to the flow, in one process."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from batchmill.planning.job import Job
from batchmill.planning.prepare import Prepared, prepare

# A flow's parameters are plain values, so a plan of a million inputs cannot be one of them. The
# caller has made it to show it to the user, and the flow need not make it again.
_handover: ContextVar[Prepared | None] = ContextVar("handover", default=None)


@contextmanager
def handing_over(prepared: Prepared) -> Iterator[None]:
    """Make `prepare_once` return `prepared` for its job during the block."""
    token = _handover.set(prepared)
    try:
        yield
    finally:
        _handover.reset(token)


def prepare_once(job: Job) -> Prepared:
    """Return the caller's prepared job if it is the same job; otherwise prepare the job."""
    prepared = _handover.get()
    return prepared if prepared and prepared.job == job else prepare(job)
