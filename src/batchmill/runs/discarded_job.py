"""A job over some inputs of another job, whose dataset is discarded."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from batchmill.ledger.ledger import Ledger
from batchmill.manifest import Manifest
from batchmill.options.failure_policy import FailurePolicy
from batchmill.options.groups import ExecutionOptions, RunOptions
from batchmill.planning.decisions import Criteria
from batchmill.planning.plan import PLANNED_COLUMNS, make_plan
from batchmill.planning.prepare import Prepared
from batchmill.runs.run import open_run
from batchmill.runs.runner import Runner
from batchmill.storage import open_store


def part_of(manifest: Manifest, rows: pa.Array | pa.ChunkedArray) -> Manifest:
    """Return some rows of a manifest, without partitions."""
    columns = manifest.manifest_columns
    return replace(
        manifest,
        inputs=manifest.inputs.take(rows),
        manifest_columns=columns.take(rows) if columns.num_columns else columns,
        companions={name: files.take(rows) for name, files in manifest.companions.items()},
        groups=None,
        partition=None,
    )


def discarded_job(prepared: Prepared, rows: pa.Array | pa.ChunkedArray, folder: Path) -> Prepared:
    """Return a job that executes some inputs of another job into a dataset in a folder.

    Args:
        prepared: The other job.
        rows: The rows of the inputs in its manifest.
        folder: An empty folder.
    """
    manifest = part_of(prepared.manifest, rows)
    output, options = str(folder / "dataset"), prepared.job.options
    ledger = Ledger(open_store(output))
    job = replace(
        prepared.job,
        output=output,
        partitioning=None,
        options=replace(
            options,
            execution=options.execution.model_copy(update={"log_steps": "off"}),
            run=RunOptions(),
        ),
    )
    return Prepared(
        job=job,
        manifest=manifest,
        step=prepared.step,
        ledger=ledger,
        plan=make_plan(manifest, ledger.records(PLANNED_COLUMNS), Criteria(prepared.step.identity)),
        ledger_state=ledger.state(),
        step_changes=(),
    )


def execute_discarded(
    job: Prepared, runner: Runner, execution: ExecutionOptions, policy: FailurePolicy
) -> None:
    """Execute the inputs of a discarded job. Its tables are not written.

    Args:
        job: The job.
        runner: Executes the shards.
        execution: How the inputs are divided into batches.
        policy: How failed inputs are handled.

    Raises:
        BatchmillError: Any error of `prepare` and of the runner.
    """
    with open_run(job) as run, runner:
        layout, shards = run.divide(execution, runner.cores, policy)
        runner.run(run, shards, layout.num_workers)
