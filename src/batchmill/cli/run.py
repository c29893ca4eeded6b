"""`batchmill run`: the main job."""

from contextlib import ExitStack
from dataclasses import replace
from typing import Annotated, Any

from cyclopts import Parameter

from batchmill.cli.options import AS_USUAL, NO_OPTIONS, WORK, JobOptions, Manifest, RunOptions
from batchmill.cli.running import run_job
from batchmill.errors import OptionError


def run(
    manifest: Manifest | None = None,
    /,
    *,
    options: JobOptions = NO_OPTIONS,
    job: Annotated[
        str | None,
        Parameter(
            group=WORK,
            help="A saved job, instead of MANIFEST and all other options about the work.",
        ),
    ] = None,
    running: RunOptions = AS_USUAL,
) -> None:
    """Run a step over every input of a manifest, and write the dataset.

    Inputs that are done already are not executed again. Examples:

    ```
    batchmill run words.csv --step batchmill.steps.words:split --output dataset --param num_chars=3
    batchmill run recordings/ --pattern '*.flac' --step batchmill.steps.audio:split -o clips
    ```
    """
    if job is None:
        run_job(options.job_parameters(manifest), running)
        return
    where = replace(
        running,
        prune=AS_USUAL.prune,
        wait=AS_USUAL.wait,
        json=AS_USUAL.json,
        verbose=AS_USUAL.verbose,
    )
    if manifest is not None or where != AS_USUAL or replace(options, force=False) != NO_OPTIONS:
        raise OptionError(
            f"--job {job}: what to do, where and how is saved with it. Drop the other "
            "options but --force, --prune and --wait, or change the saved job."
        )
    with ExitStack() as held:
        run_job(_load_job(job, held) | {"force": options.force}, running)


def _load_job(name: str, held: ExitStack) -> dict[str, Any]:
    """Return the parameters of a saved job; the Prefect API stays at hand as long as `held`."""
    from batchmill.blocks.saved_job import as_job
    from batchmill.flows.services.api import shared_api

    held.enter_context(shared_api())
    parameters: dict[str, Any] = as_job(name).parameters()
    return parameters
