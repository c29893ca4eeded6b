"""`batchmill run`: run a step over every input of a manifest."""

from typing import Annotated

from cyclopts import Parameter

from batchmill.cli.early_start import starting_run
from batchmill.cli.options import (
    SAVED,
    ClusterOptions,
    JobOptions,
    Json,
    Manifest,
    Output,
    Params,
    ParamsFile,
    Step,
    StoreName,
    Verbose,
    check_given,
)
from batchmill.errors import OptionError
from batchmill.step.params import parse_params


def run(
    manifest: Manifest = "",
    /,
    *,
    step: Step = "",
    output: Output = "",
    param: Params = (),
    params: ParamsFile = None,
    store: StoreName = "",
    job: Annotated[
        str,
        Parameter(
            group=SAVED,
            help="Name of a saved job. It replaces MANIFEST and all other options of the job.",
        ),
    ] = "",
    options: JobOptions = JobOptions(),
    cluster: ClusterOptions = ClusterOptions(),
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run a step over every input of a manifest, and write the dataset.

    Inputs that are already done are not executed again. Examples:

    ```
    batchmill run words.csv --step batchmill.steps.words:split --output dataset --param num_chars=3
    batchmill run recordings/ --pattern '*.flac' --step batchmill.steps.audio:split -o clips
    ```
    """
    if not job:
        hint = "Give MANIFEST, --step and --output, or a saved job: --job NAME."
        check_given(hint, manifest=manifest, step=step, output=output)
        with starting_run(output, verbose=verbose):
            # Imported here because the import takes half a second.
            from batchmill.cli.run_console import run_and_show
            from batchmill.jobs.run_job import JobRequest

            request = JobRequest(
                manifest=manifest,
                step=step,
                output=output,
                params=parse_params(param, params),
                options=options,
                cluster=cluster.cluster(),
                store=store or None,
            )
            run_and_show(request, json=json, verbose=verbose)
        return
    # An option with its default value is rejected as well: the saved job may have another value.
    groups = [group for name, group in options.parameters().items() if name != "run"]
    given = (manifest, step, output, param, params, store, *(g.model_fields_set for g in groups))
    if any(given) or cluster != ClusterOptions():
        raise OptionError(
            f"--job {job}: the saved job contains all options of the job. Remove the other options "
            "(--force, --prune and --wait are allowed), or change the saved job."
        )
    # Prefect has the saved job, so the run needs a server in any case.
    with starting_run("", verbose=verbose):
        from batchmill.cli.run_console import run_and_show

        run_and_show(job, run_options=options.run, json=json, verbose=verbose)
