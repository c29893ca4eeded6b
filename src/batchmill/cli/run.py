"""`batchmill run` and `infer`: run a step or a model over every input of a manifest."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Annotated, Any

from cyclopts import Group, Parameter

from batchmill.cli.console import console, hide_prefect_log
from batchmill.cli.options import (
    SAVED,
    ClusterOptions,
    Dataset,
    JobOptions,
    Json,
    Manifest,
    Model,
    ModelJobOptions,
    Output,
    Params,
    ParamsFile,
    Place,
    Step,
    StoreName,
    Verbose,
    check_given,
)
from batchmill.core.layout import LEDGER_FOLDER
from batchmill.core.options.job_options import ModelOptions
from batchmill.core.urls import absolute, is_url, without_file_scheme
from batchmill.core.user_step.params import parse_params
from batchmill.errors import OptionError, RunError
from batchmill.orchestration.server.embedded_server import preparing_server


def run(
    manifest: Manifest = "",
    /,
    *,
    step: Step = "",
    output: Output = "",
    param: Params = (),
    params: ParamsFile = None,
    store: StoreName = "",
    job: Annotated[str, Parameter(group=SAVED)] = "",
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

    Args:
        job: Name of a saved job. It replaces MANIFEST and all other options of the job.
    """
    # An option with its default value is rejected as well: the saved job may have another value.
    groups = [group for name, group in options.parameters().items() if name != "run"]
    others = (manifest, step, output, param, params, store, *(g.model_fields_set for g in groups))
    if not job:
        hint = "Give MANIFEST, --step and --output, or a saved job: --job NAME."
        check_given(hint, manifest=manifest, step=step, output=output)
    elif any(others) or cluster != ClusterOptions():
        raise OptionError(
            f"--job {job}: the saved job contains all options of the job. Remove the other options "
            "(those of this run, such as --force, are allowed), or change the saved job."
        )
    # Prefect has a saved job, so its run needs a server in any case.
    with _starting_run(output, verbose=verbose):
        # Imported here because the import takes half a second.
        from batchmill.api.jobs.request import JobRequest
        from batchmill.cli.run_console import run_and_show

        request = job or JobRequest(
            manifest=manifest,
            step=step,
            output=output,
            params=parse_params(param, params, step),
            options=options,
            cluster=cluster.cluster(),
            store=store or None,
        )
        run_and_show(request, run_options=options.run, json=json, verbose=verbose)


def infer(
    manifest: Manifest = "",
    /,
    *,
    model: Annotated[Place, Parameter(group=Group("Model", sort_key=0))] = "",
    model_options: Model = ModelOptions(),
    output: Output = "",
    store: StoreName = "",
    options: ModelJobOptions = ModelJobOptions(),
    cluster: ClusterOptions = ClusterOptions(),
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run a model over every input of a manifest, and write its predictions as a dataset.

    The manifest can be a dataset. The dataset's output files are then the inputs. Examples:

    ```
    batchmill infer clips --model classifier.pt2 --output predictions --classes cat,dog
    batchmill infer photos/ --pattern '*.jpg' --model mylab.nets:segmenter -o masks
        --predictions files
    ```

    Args:
        model: Model file (.pt2 from torch.export; .pt, .pth or .ts from TorchScript), or a
            function that makes the model: package.module:function. Required.
    """
    check_given(manifest=manifest, model=model, output=output)
    with _starting_run(output, verbose=verbose):
        # Imported here because the import takes half a second.
        from batchmill.api.jobs.request import JobRequest
        from batchmill.cli.run_console import run_and_show

        request = JobRequest(
            manifest=manifest,
            model=str(model),
            model_options=model_options,
            output=output,
            options=options,
            cluster=cluster.cluster(),
            store=store or None,
        )
        run_and_show(request, json=json, verbose=verbose)


def update(
    dataset: Dataset,
    /,
    *,
    deep: bool = False,
    plan: bool = False,
    manifest: Place = "",
    step: Step = "",
    root: str = "",
    cluster: ClusterOptions = ClusterOptions(),
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run the recorded job of a dataset again: its manifest, step, params and options.

    New and changed inputs are executed, like with the same `run` command. Examples:

    ```
    batchmill update clips
    batchmill update embeddings --deep --plan
    ```

    Args:
        deep: First update the datasets that the inputs are from. If one fails, stop.
        plan: Show what the update would do. Start nothing.
        manifest: Another manifest, from now on.
        step: Another step, from now on.
        root: Another folder that contains all inputs, from now on.
    """
    place = absolute(str(dataset))
    changes: dict[str, Any] = {"step": step or None, "root": root}
    if manifest:
        changes["manifest"] = str(manifest)
    with nullcontext() if plan else _starting_run(place, verbose=verbose):
        # Imported here because the import takes half a second.
        from batchmill.api.jobs.request import JobRequest
        from batchmill.cli.plan import print_plan
        from batchmill.cli.run_console import run_and_show
        from batchmill.core.planning.recorded_job import jobs_to_update, why_not_updated

        for job in jobs_to_update(place, deep=deep, **changes):
            if deep:
                console(stderr=True, quiet=json).print(f"{job.output}:")
            request = JobRequest(**vars(job), cluster=None if plan else cluster.cluster())
            if plan:
                print_plan(request, json=json)
                continue
            try:
                run_and_show(request, json=json, verbose=verbose)
            except RunError as error:
                text = f"{error}\n{why_not_updated(place, job.output)}".rstrip()
                raise RunError(text) from error


@contextmanager
def _starting_run(output: str | os.PathLike[str], *, verbose: bool) -> Iterator[None]:
    """Begin the slow parts of a run before their imports.

    Set the log level. Unless the dataset is in an existing folder, prepare Prefect's server.

    The temporary server writes nothing before the checks of the run have passed. A run over an
    existing dataset may have nothing to do, and then it needs no server. If its dataset is in a
    folder, it soon knows, and starts the server after it has made its plan. A plan of a bucket
    takes about as long as the imports of the server's process. So they are done at the same time.

    Args:
        output: The path or URL of the dataset. Empty: the run needs a server in any case.
        verbose: Show the log of Prefect, and batchmill's own log in detail.
    """
    if verbose:
        logging.getLogger("batchmill").setLevel(logging.DEBUG)
    else:
        hide_prefect_log()
    place = without_file_scheme(os.fspath(output))
    is_known_soon = not is_url(place) and os.path.exists(os.path.join(place, LEDGER_FOLDER))
    with nullcontext() if is_known_soon and place else preparing_server():
        yield
