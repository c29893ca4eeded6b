"""A job over some inputs of another job, whose dataset is discarded."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from batchmill.ledger.ledger import Ledger
from batchmill.planning.plan import PLANNED_COLUMNS, make_plan
from batchmill.planning.prepare import Prepared
from batchmill.publishing.publisher import Publisher
from batchmill.storage import open_store


class NoPublisher(Publisher):
    """Publishes nothing, because the dataset is discarded."""

    def write_tables(self, prepared: Prepared) -> str:  # noqa: ARG002
        """Write nothing."""
        return ""

    def write_report(self, ledger: Ledger, run: int, dataset: str) -> None:
        """Write nothing."""


def discarded_job(prepared: Prepared, rows: pa.Array | pa.ChunkedArray, folder: Path) -> Prepared:
    """Return a job that executes some inputs of another job into a dataset in a folder.

    Args:
        prepared: The other job.
        rows: The rows of the inputs in its manifest.
        folder: An empty folder.
    """
    columns = prepared.manifest.manifest_columns
    manifest = replace(
        prepared.manifest,
        inputs=prepared.manifest.inputs.take(rows),
        manifest_columns=columns.take(rows) if columns.num_columns else columns,
        companions={name: files.take(rows) for name, files in prepared.manifest.companions.items()},
        groups=None,
        partition=None,
    )
    output = str(folder / "dataset")
    ledger = Ledger(open_store(output))
    job = replace(
        prepared.job,
        output=output,
        partitioning=None,
        force=False,
        accept_change=False,
        verify_change=0,
        sample=0,
        budget_seconds=None,
        log_steps="",
    )
    return Prepared(
        job=job,
        manifest=manifest,
        step=prepared.step,
        ledger=ledger,
        plan=make_plan(manifest, ledger.records(PLANNED_COLUMNS), prepared.step.identity),
        ledger_state=ledger.state(),
        step_changes=(),
    )
