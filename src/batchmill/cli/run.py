"""`batchmill run`: the main job."""

import json
import os
import time
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from batchmill.batching import Batching
from batchmill.cli.options import JobOptions, Json, Manifest
from batchmill.cli.progress import showing_progress
from batchmill.errors import RunError
from batchmill.job import Prepared, handing_over, prepare


def run(
    manifest: Manifest,
    /,
    *,
    options: JobOptions,
    ray: Annotated[
        str | None,
        Parameter(help="Address of a Ray cluster (ray://host:10001). Default: a private one here."),
    ] = None,
    json: Json = False,
    verbose: Annotated[
        bool, Parameter(alias="-v", negative=(), help="Show what Prefect and Ray have to say.")
    ] = False,
) -> None:
    """Run a step over every input of a manifest, and write the dataset.

    Inputs that are done already are not executed again. Examples:

    ```
    batchmill run words.csv --step batchmill.steps.words:split --output dataset --param num_chars=3
    batchmill run recordings/ --pattern '*.flac' --step batchmill.steps.audio:split -o clips
    ```
    """
    job = options.job(manifest)
    Batching(batch_size=options.batch_size, num_workers=options.num_workers)
    prepared = prepare(job)
    console = Console(stderr=True, highlight=False)
    if not json:
        console.print(_to_do(prepared), markup=False)
    _quieten(verbose)
    # Imported now, for this takes a second or two, and bad input is to be told at once.
    from batchmill.flows.preprocess import preprocess

    begun = time.monotonic()
    try:
        with handing_over(prepared), showing_progress(prepared.ledger, console, quiet=json):
            summary = preprocess(
                job.manifest,
                job.step,
                job.output,
                params=dict(job.params),
                input_column=job.input_column,
                root=job.root,
                pattern=job.pattern,
                batch_size=options.batch_size,
                num_workers=options.num_workers,
                ray_address=ray,
                verbose=verbose,
            )
    except RunError:
        if json:
            print(_json_of(prepared.ledger.read_summary(prepared.ledger.runs()[-1])))
        raise
    if json:
        print(_json_of(summary))
    else:
        seconds = time.monotonic() - begun
        console.print(
            f"{summary['sentence']} ({summary['executed']:,} executed in {seconds:.1f} s)",
            markup=False,
        )
        console.print(f"Dataset: {job.output}", markup=False)


def _to_do(prepared: Prepared) -> str:
    counts = prepared.plan.counts
    pending = len(prepared.plan.pending)
    listed = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    return f"{len(prepared.manifest):,} inputs ({listed}); {pending:,} to execute."


def _quieten(verbose: bool) -> None:
    """Keep Prefect's log off the terminal; its API gets it all the same."""
    if not verbose:
        os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")


def _json_of(summary: dict[str, Any] | None) -> str:
    return json.dumps(summary, ensure_ascii=False)
