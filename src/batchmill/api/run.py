"""Run a step or a model over a manifest, plan a run, or count the outcomes of the last run."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from batchmill.api.jobs.plan_job import PlanResult, plan_job
from batchmill.api.jobs.request import JobRequest
from batchmill.api.jobs.run_job import run_job
from batchmill.api.keywords import InferKeywords, JobKeywords, python_call, with_options
from batchmill.api.live_line import LiveLine
from batchmill.api.run_result import RunResult
from batchmill.core.ledger.open import last_run, open_ledger
from batchmill.core.manifest import ManifestLike
from batchmill.core.options.job_options import JobSettings, ModelOptions
from batchmill.core.planning.recorded_job import jobs_to_update, why_not_updated
from batchmill.core.urls import absolute
from batchmill.datasets.publishing.run_summary import summarise
from batchmill.errors import RunError
from batchmill.orchestration.interrupts import is_interactive
from batchmill.orchestration.server.embedded_server import keep_servers
from batchmill.runs.shards.process_pool import keep_ready
from batchmill.steps.inference.model_step import predict_params

if TYPE_CHECKING:
    from batchmill.blocks import DatasetStore, RayCluster
    from batchmill.datasets.publishing.report.review import Review

# A function, class or object, or a reference.
Step = Any
Place = str | os.PathLike[str]


@with_options(JobKeywords)
@python_call
def run(
    manifest: ManifestLike,
    step: Step,
    output: Place,
    *,
    params: Mapping[str, Any] | None = None,
    cluster: "RayCluster | str | None" = None,
    store: "DatasetStore | str | None" = None,
    verbose: bool = False,
    **options: Unpack[JobKeywords],
) -> RunResult:
    """Run a step over every input of a manifest, and write the dataset.

    Inputs that are already done are not executed again. Mistakes in the arguments are reported
    before anything is started.

    Args:
        manifest: Path or URL of a table, a folder, a glob, a list of paths, or a DataFrame.
        step: Function, class or object, or its reference package.module:attribute.
        output: The dataset: a folder or URL. If the dataset exists, the run adds to it.
        params: The step's keyword arguments.
        cluster: Address of a Ray cluster, "local", "block:NAME" or a RayCluster. Default: this
            machine, without Ray.
        store: "block:NAME" or a DatasetStore that contains the dataset.
        verbose: Show the log of Prefect. Default: one line with the progress, in a notebook or on a
            terminal.
        **options: See below.

    Returns:
        The counts, and the dataset's tables as DataFrames.

    Raises:
        ManifestError, StepError, OptionError, LedgerError, StoreError: Nothing was started.
        ServiceError: Prefect or Ray cannot be used.
        RunError: More inputs failed than `max_failures`, or the run ended early.
        CancelledError: The run was cancelled.
    """
    request = JobRequest(
        manifest=manifest,
        step=step,
        output=output,
        params=params or {},
        options=JobSettings.from_flat(options),
        cluster=cluster,
        store=store,
        verbose=verbose,
    )
    return _run(request)


@with_options(InferKeywords)
@python_call
def infer(
    manifest: ManifestLike,
    model: Any,
    output: Place,
    *,
    cluster: "RayCluster | str | None" = None,
    store: "DatasetStore | str | None" = None,
    verbose: bool = False,
    **options: Unpack[InferKeywords],
) -> RunResult:
    """Run a model over every input of a manifest, and write its predictions as a dataset.

    Args:
        manifest: A dataset, whose output files are the inputs, or any manifest that `run` accepts.
        model: A file (.pt2 from torch.export; .pt, .pth or .ts from TorchScript), a
            `torch.nn.Module`, or a function or class that makes the model: package.module:function,
            or the function itself. A model and a function may be those of a notebook.
        output: The dataset of predictions: a folder or URL.
        cluster: As for `run`.
        store: As for `run`.
        verbose: As for `run`.
        **options: See below.

    Returns:
        The counts, and the dataset's tables as DataFrames.

    Raises:
        BatchmillError: As for `run`.
    """
    flat = dict(options)
    model_keywords = {name: flat.pop(name) for name in ModelOptions.model_fields if name in flat}
    model_options = ModelOptions(**model_keywords)  # type: ignore[arg-type]
    if isinstance(model, str | os.PathLike):
        work: dict[str, Any] = {"model": os.fspath(model), "model_options": model_options}
    else:
        from batchmill.steps.predict import predict_with  # Imports torch.

        as_files = model_options.predictions == "files"
        step = predict_with(model, files=as_files, weights=model_options.weights)
        work = {"step": step, "params": predict_params(model_options)}
    request = JobRequest(
        manifest=manifest,
        **work,
        output=output,
        options=JobSettings.from_flat(flat),
        cluster=cluster,
        store=store,
        verbose=verbose,
    )
    return _run(request)


@with_options(JobKeywords)
@python_call
def plan(
    manifest: ManifestLike,
    step: Step,
    output: Place,
    *,
    params: Mapping[str, Any] | None = None,
    cores: int = 0,
    store: "DatasetStore | str | None" = None,
    **options: Unpack[JobKeywords],
) -> PlanResult:
    """Return what `run` would do. Starts nothing and writes nothing.

    Args:
        manifest: As for `run`.
        step: As for `run`.
        output: As for `run`.
        params: As for `run`.
        cores: Cores to plan for, for example those of a cluster. Default: this machine's.
        store: As for `run`.
        **options: See below.

    Returns:
        The counts, and how the pending inputs are divided.

    Raises:
        ManifestError, StepError, OptionError, LedgerError, StoreError: The job cannot be run.
    """
    request = JobRequest(
        manifest=manifest,
        step=step,
        output=output,
        params=params or {},
        options=JobSettings.from_flat(options),
        store=store,
    )
    return plan_job(request, cores)


@python_call
def update(
    dataset: Place,
    *,
    deep: bool = False,
    manifest: ManifestLike | None = None,
    step: Step = None,
    root: Place = "",
    cluster: "RayCluster | str | None" = None,
    verbose: bool = False,
) -> RunResult:
    """Run the recorded job of a dataset again: its manifest, step, params and options.

    The working folder is that of the last run meanwhile, because the step may be in it.

    Args:
        dataset: The dataset's folder or URL.
        deep: First update the datasets that the inputs are from. If one fails, stop.
        manifest: Another manifest, from now on.
        step: Another step, from now on.
        root: Another folder that contains all inputs, from now on.
        cluster: As for `run`.
        verbose: As for `run`.

    Returns:
        The result of the run over `dataset`.

    Raises:
        OptionError: There is no such dataset, or its step is in no module.
        BatchmillError: As for `run`.
    """
    place = absolute(os.fspath(dataset))
    changes = {"manifest": manifest, "step": step, "root": os.fspath(root)}
    for job in jobs_to_update(place, deep=deep, **changes):
        try:
            result = _run(JobRequest(**vars(job), cluster=cluster, verbose=verbose))
        except RunError as error:
            text = f"{error}\n{why_not_updated(place, job.output)}".rstrip()
            raise RunError(text) from error
    return result


@python_call
def review(
    dataset: Place,
    *,
    params: Mapping[str, Any] | None = None,
    step: Step = None,
    sample: int = 300,
    seed: int | None = None,
) -> "Review":
    """Execute a random sample of a dataset with a changed step, and compare it with the results.

    The new results are discarded. `print(review(...))` shows the review, and so does a notebook.

    Args:
        dataset: The dataset's folder or URL. Its recorded job is executed.
        params: Parameters of the step with other values.
        step: Another step. Default: the recorded one, as its code is now.
        sample: The number of inputs to execute.
        seed: The seed of the sample. Default: a new one.

    Returns:
        The numbers of results that differ, the differences, new and vanished failures, and costs.

    Raises:
        OptionError: There is no outcome to compare with, or the step cannot run on a sample.
        BatchmillError: As for `run`.
    """
    from batchmill.runs.review import review as execute_review  # Imports torch.

    place = absolute(os.fspath(dataset))
    return execute_review(place, params=params or {}, step=step, count=sample, seed=seed)


@python_call
def status(dataset: Place) -> RunResult:
    """Return the counts and the tables of a dataset, after or during its last run.

    Args:
        dataset: The dataset's folder or URL.

    Returns:
        The same result that the last run returned, with the present counts.

    Raises:
        OptionError: There is no such dataset, or it has no run.
    """
    place = absolute(os.fspath(dataset))
    ledger = open_ledger(place)
    return RunResult(place, summarise(ledger, last_run(ledger, place)))


def _run(request: JobRequest) -> RunResult:
    """Run a job. Return its result, or raise the error that ended it."""
    keep_servers()
    if is_interactive():
        keep_ready()
    ended = run_job(request, LiveLine())
    if ended.error:
        raise ended.error
    prepared = ended.prepared
    return RunResult(
        prepared.job.output, ended.summary, ended.access, ended.forecast, prepared.change_check
    )
