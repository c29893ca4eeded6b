"""A run that has nothing to execute, where there is no Prefect server to tell of it.

To start one takes longer than to see that a million inputs are unchanged. Imports no Prefect, for
that takes as long.
"""

from typing import Any

from batchmill.errors import RunError
from batchmill.job import Prepared
from batchmill.policy import FailurePolicy
from batchmill.publication import publish_changes
from batchmill.report import write_report
from batchmill.run import open_run
from batchmill.summary import failure_message


def is_idle(prepared: Prepared) -> bool:
    """Tell whether there is nothing to execute, nor to tell of a run that was killed."""
    runs = prepared.ledger.runs()
    ended = bool(runs) and prepared.ledger.read_summary(runs[-1]) is not None
    return ended and not len(prepared.plan.pending)


def finish(
    prepared: Prepared, policy: FailurePolicy, *, prune: bool, wait: bool
) -> dict[str, Any] | None:
    """Do what is left of an idle run: look after its tables, and prune; returns its summary.

    None, with nothing done, if by now there is something to execute. Raises RunError if too many
    inputs are not ok, and what `open_run` raises.
    """
    with open_run(prepared, wait=wait) as run:
        if run.pending:
            return None
        run.divide_nothing(policy)
        run.settle(prune=prune)
        publish_changes(run.ledger, run.prepared.manifest)
        summary = run.end()
        if run.report_is_stale:
            write_report(run.ledger, run.number, run.prepared.job.output)
    if not summary.accepted(policy.failures_allowed(summary.inputs)):
        raise RunError(failure_message(summary, prepared.job.output))
    return prepared.ledger.read_summary(run.number)
