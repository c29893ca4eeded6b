"""Finish a run that has nothing to execute and nothing new to report, without Prefect.

To import Prefect takes longer than to detect that a million inputs are unchanged.
"""

from typing import NamedTuple

import pyarrow.compute as pc

from batchmill.core.ledger.lease import Wait
from batchmill.core.ledger.state import MISSING
from batchmill.core.planning.job import Job
from batchmill.core.planning.prepare import Prepared
from batchmill.datasets.publishing.run_message import failure_message
from batchmill.datasets.publishing.run_summary import Summary
from batchmill.errors import RunError
from batchmill.runs.execute import InThisProcess, RunObserver, execute
from batchmill.runs.run import Run


class JobEnd(NamedTuple):
    """How a job ended.

    Attributes:
        run: The number of the run.
        error: The error that ended the run, for example too many failed inputs.
        note: A sentence for the user about the history in Prefect. Usually empty.
    """

    run: int
    error: RunError | None = None
    note: str = ""


def failure_of(summary: Summary, job: Job) -> RunError | None:
    """Return the error of a run that its failure policy does not accept."""
    if summary.accepted(job.options.failures):
        return None
    return RunError(failure_message(summary, job.output, job.options.failures))


class NotIdleError(Exception):
    """Another run has changed the dataset meanwhile, and there is something to execute now."""


def is_idle(prepared: Prepared) -> bool:
    """Return whether a run has nothing to execute, no new failure, and the previous run ended.

    A killed run has no end. Then Prefect still has to show the killed run as crashed.
    """
    if not _is_done(prepared):
        return False
    runs = prepared.ledger.runs()
    return bool(runs) and prepared.ledger.read_summary(runs[-1]) is not None


def _is_done(prepared: Prepared) -> bool:
    is_lost = pc.equal(prepared.plan.absences["absence"], MISSING)
    return not len(prepared.plan.pending) and not pc.any(is_lost).as_py()


class _Idle(RunObserver):
    def begin(self, run: Run) -> None:
        if not _is_done(run.prepared):
            raise NotIdleError


def run_idle(prepared: Prepared) -> JobEnd:
    """Update the tables of an idle run, without Prefect.

    Args:
        prepared: The job, for which `is_idle` returned True.

    Returns:
        How the job ended.

    Raises:
        NotIdleError: Inputs are pending or missing now. Nothing was written.
        BatchmillError: See `execute`.
    """
    observer = _Idle()
    observer.wait = Wait() if prepared.job.options.run.wait else None
    ended = execute(prepared, InThisProcess(), observer)
    return JobEnd(ended.summary.run, failure_of(ended.summary, prepared.job))
