"""Finish a run that has nothing to execute and nothing to report, without Prefect.

To import Prefect takes longer than to detect that a million inputs are unchanged.
"""

from typing import Any

from batchmill.ledger.lease import Wait
from batchmill.options.failure_policy import FailurePolicy
from batchmill.planning.prepare import Prepared
from batchmill.publishing.publish import publish_changes
from batchmill.publishing.report import write_report
from batchmill.runs.run import open_run


def is_idle(prepared: Prepared) -> bool:
    """Return whether all inputs are done and the previous run ended.

    A killed run has no end. Then Prefect still has to show the killed run as crashed.
    """
    runs = prepared.ledger.runs()
    ended = bool(runs) and prepared.ledger.read_summary(runs[-1]) is not None
    return ended and _is_done(prepared)


def _is_done(prepared: Prepared) -> bool:
    return not len(prepared.plan.pending) and not prepared.plan.counts["quarantined"]


def finish(prepared: Prepared, *, prune: bool, wait: bool) -> dict[str, Any] | None:
    """Update the tables of an idle run, without Prefect.

    Args:
        prepared: The job, for which `is_idle` returned True.
        prune: Also remove the files and rows of inputs that are no longer in the manifest.
        wait: Wait until another run over the dataset has ended.

    Returns:
        The summary. None if another run has changed the dataset meanwhile and inputs are pending or
        quarantined now. Then nothing was written.

    Raises:
        BatchmillError: See `open_run`.
    """
    with open_run(prepared, wait=Wait() if wait else None) as run:
        if not _is_done(run.prepared):
            return None
        run.divide_nothing(FailurePolicy())
        run.finalize(prune=prune)
        publish_changes(run.ledger, run.prepared.manifest)
        run.end()
        if run.report_is_stale:
            write_report(run.ledger, run.number, run.prepared.job.output)
    return prepared.ledger.read_summary(run.number)
