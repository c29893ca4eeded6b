"""Run a job from request to summary, for the command line and the Python API.

All checks run before a server, a process or a folder exists. Prefect is imported only if the job
has something to execute or to report, or names a saved block.
"""

import gc
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from batchmill.errors import RunError
from batchmill.inference.gpus import check_device, gpus_for
from batchmill.inference.model_step import make_inference
from batchmill.jobs.idle_run import JobEnd, NotIdleError, is_idle, run_idle
from batchmill.jobs.output_check import check_writable
from batchmill.ledger.lease import check_free
from batchmill.manifest import ManifestLike
from batchmill.manifest.records import listed_manifest, save_manifest
from batchmill.options.groups import JobSettings, ModelOptions
from batchmill.orchestration.server.embedded_server import has_server, starting_server
from batchmill.planning.batching import Layout, cores_of_machine, own_cores
from batchmill.planning.forecast import Forecast
from batchmill.planning.job import make_job
from batchmill.planning.prepare import Prepared, forecast_for, prepare
from batchmill.publishing.summary import Summary, summarise
from batchmill.runs.run import handing_over
from batchmill.security.credentials import Access, access_to
from batchmill.shards.process_pool import shard_processes
from batchmill.sizes import counted, list_counts
from batchmill.step.import_reference import refuse_nested_run

if TYPE_CHECKING:
    from batchmill.blocks import DatasetStore, RayCluster


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """The arguments of a job, before any check.

    Attributes:
        manifest: A path, a URL, a list of paths or a DataFrame.
        output: The path or URL of the dataset.
        step: A reference, or a function, class or object. Ignored if there is a model.
        params: The keyword arguments of the step.
        model: A model file, or a reference to the function that makes the model.
        model_options: How the model is loaded and applied.
        options: The option groups of the flow.
        cluster: An address, block:NAME, or a `RayCluster`. None: this machine, without Ray.
        store: block:NAME or a `DatasetStore`.
        verbose: Show the log of Prefect, and batchmill's own log in detail.
    """

    manifest: ManifestLike
    output: str | os.PathLike[str]
    step: Any = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    model_options: ModelOptions = ModelOptions()
    options: JobSettings = JobSettings()
    cluster: "RayCluster | str | None" = None
    store: "DatasetStore | str | None" = None
    verbose: bool = False


class JobDisplay:
    """Base class for what a user sees of a job. Its methods show nothing."""

    def show_plan(self, prepared: Prepared) -> None:
        """Show what the run will do."""

    def show_change_check(self, prepared: Prepared) -> None:
        """Show whether the outputs of changed code are equal, and what the run will do."""

    def say(self, *lines: str) -> None:
        """Show what happens before the run, for example that a sample is executed."""

    def follow(self, prepared: Prepared) -> AbstractContextManager[None]:  # noqa: ARG002
        """Show progress while the block runs."""
        return nullcontext()


@dataclass(frozen=True, kw_only=True)
class EndedRun:
    """A run that has ended.

    Attributes:
        prepared: The job and its plan.
        summary: The counts of outcomes.
        access: The credentials of the store that contains the dataset.
        error: The error that ended the run, for example too many failed inputs.
        note: A sentence for the user about the history in Prefect. Usually empty.
        forecast: The forecast for the inputs outside the sample. None without a sample.
    """

    prepared: Prepared
    summary: Summary
    access: Sequence[Access] = ()
    error: RunError | None = None
    note: str = ""
    forecast: Forecast | None = None


def run_job(request: JobRequest, display: JobDisplay | None = None) -> EndedRun:
    """Run a job and wait for its end.

    Args:
        request: The job.
        display: Shows the plan and the progress. Default: nothing is shown.

    Returns:
        The run. If more inputs failed than allowed, its `error` is set, and nothing is raised.

    Raises:
        ManifestError, StepError, OptionError, LedgerError, StoreError: A check failed. Nothing was
            started.
        ServiceError: Prefect or Ray cannot be used.
        CancelledError: The run was cancelled.
        RunError: The run ended before it was recorded in the ledger.
    """
    display = display or JobDisplay()
    refuse_nested_run()
    with ExitStack() as held:
        request, prepared, is_listed = _prepare(request, held)
        check_writable(prepared.job.output)
        options = request.options
        display.show_plan(prepared)
        if not options.run.wait:
            check_free(prepared.ledger)
        _check_cluster(cast("RayCluster | None", request.cluster))
        if request.cluster is None and len(prepared.plan.pending):
            check_device(prepared.step)  # The machines of a cluster may have other GPUs.
        if options.run.verify_change:
            from batchmill.runs.verify_change import verify_change

            prepared = verify_change(
                prepared,
                on_sample=lambda inputs: display.say(
                    f"Executing {counted(inputs, 'input')} with the changed code to compare them."
                ),
            )
            display.show_change_check(prepared)
        if is_listed:
            job = prepared.job
            save_manifest(prepared.manifest, job.manifest, job.options.inputs.input_column)
        with display.follow(prepared):
            ended = _execute(request, prepared)
        return EndedRun(
            prepared=prepared,
            summary=summarise(prepared.ledger, ended.run),
            access=cast("DatasetStore", request.store).access if request.store else (),
            error=ended.error,
            note=ended.note,
            forecast=None
            if prepared.plan.left is None
            else forecast_for(prepared, prepared.plan.left),
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class PlanResult:
    """The plan of a run: counts, and how the pending inputs are divided.

    Attributes:
        prepared: The job and its plan.
        layout: How the inputs are divided into shards and batches.
        cores: The number of cores that the layout is made for.
        forecast: The forecast for the pending inputs. None if the step has no outcome yet.
    """

    prepared: Prepared
    layout: Layout
    cores: int
    forecast: Forecast | None = None

    @property
    def counts(self) -> dict[str, int]:
        """The number of inputs by reason: new, changed, retry, unchanged and so on."""
        return dict(self.prepared.plan.counts)

    @property
    def pending(self) -> int:
        """The number of inputs to execute."""
        return len(self.prepared.plan.pending)

    @property
    def shards(self) -> int:
        """The number of shards that the pending inputs are divided into."""
        return self.layout.shards if self.pending else 0

    @property
    def batch_size(self) -> int:
        """The number of inputs per batch."""
        return self.layout.batch_size

    @property
    def num_workers(self) -> int:
        """The number of DataLoader workers per shard."""
        return self.layout.num_workers

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons for this division, one sentence per choice."""
        return self.layout.reasons

    def __repr__(self) -> str:
        listed = list_counts(self.counts) or "no inputs"
        layout = (
            f"{counted(self.pending, 'input')} to execute ({listed}) in "
            f"{counted(self.shards, 'shard')}, batch_size {self.batch_size}, "
            f"num_workers {self.num_workers}"
        )
        forecast = self.forecast.lines() if self.forecast else ()
        return "\n".join([layout, *self.prepared.change_lines(), *forecast])


def plan_run(request: JobRequest, cores: int = 0) -> PlanResult:
    """Check a request and plan its job. Starts nothing and writes nothing.

    Args:
        request: The job.
        cores: The number of cores to plan for. 0: the cores of this machine.

    Returns:
        The plan.

    Raises:
        ManifestError, StepError, OptionError, LedgerError, StoreError: A check failed.
    """
    with ExitStack() as held:
        request, prepared, _ = _prepare(request, held)
        gpus = len(gpus_for(prepared.step))
        available = cores_of_machine(cores or own_cores(), gpus)
        forecast = forecast_for(prepared, prepared.plan.pending)
        layout = prepared.layout(available)
    return PlanResult(prepared=prepared, layout=layout, cores=available.total, forecast=forecast)


def _prepare(request: JobRequest, held: ExitStack) -> tuple[JobRequest, Prepared, bool]:
    """Check a request and plan its job. Also return whether the manifest is a list or table."""
    request = _with_blocks(request, held)
    output = os.fspath(request.output)
    if isinstance(request.manifest, str | os.PathLike):
        manifest, listed = os.fspath(request.manifest), None
    else:
        manifest, listed = listed_manifest(output), request.manifest
    step, params = request.step, request.params
    if request.model:
        step, params = make_inference(request.model, request.model_options)
    job = make_job(
        manifest=manifest,
        step=step,
        output=output,
        params=params,
        options=request.options,
    )
    if job.confinement and request.cluster is None:
        from batchmill.workers.landlock import check_support  # Imports torch.

        check_support(job.confinement.writable)
    return request, prepare(job, listed), listed is not None


def _with_blocks(request: JobRequest, held: ExitStack) -> JobRequest:
    """Replace the names of saved blocks by the blocks. Open the store until `held` is closed."""
    if request.cluster is None and request.store is None:
        return request
    from batchmill.blocks.dataset_store import as_store, place_of_dataset
    from batchmill.blocks.ray_cluster import as_cluster
    from batchmill.blocks.saved_block import saved_name
    from batchmill.flows.deployment_checks import check_blocks

    if any(saved_name(given) is not None for given in (request.cluster, request.store)):
        from batchmill.orchestration.server.api import shared_api

        held.enter_context(shared_api())
    cluster, store = as_cluster(request.cluster), as_store(request.store)
    check_blocks(store, cluster)
    held.enter_context(access_to(store.access if store else []))
    output = place_of_dataset(store, request.output)
    return replace(request, cluster=cluster, store=store, output=output)


def _check_cluster(cluster: "RayCluster | None") -> None:
    """Raise OptionError or ServiceError if a cluster obviously cannot be used."""
    if cluster is None:
        return
    cluster.present_token()
    from batchmill.orchestration.cluster.connection import check_cluster

    check_cluster(cluster)


def _execute(request: JobRequest, prepared: Prepared) -> JobEnd:
    """Run the flow, or an idle run without Prefect."""
    # Only the flow can check a cluster.
    if request.cluster is None and is_idle(prepared):
        with suppress(NotIdleError):
            return run_idle(prepared)
    # The server starts while this process imports Prefect, which takes one or two seconds. A run in
    # a user's own flow uses the server of that flow. Two servers on one database lose records.
    with (
        nullcontext() if _is_in_flow() else starting_server(),
        handing_over(prepared),
        shard_processes() as processes,
    ):
        if has_server() and len(prepared.plan.pending) and request.cluster is None:
            # The run does not wait for a server, so the import of torch would take longest.
            processes.warm_up(prepared.job.output)
        with _without_garbage_collection():
            from batchmill.jobs.flow_run import log_level, run_flow

        with log_level(verbose=request.verbose):
            return run_flow(request.model, _parameters(request, prepared), prepared)


def _is_in_flow() -> bool:
    """Return whether a user's own flow calls. Without Prefect, there is no flow."""
    context = sys.modules.get("prefect.context")
    return context is not None and context.FlowRunContext.get() is not None


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Search for no garbage during the block. Among imported objects, this takes a fifth of it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _parameters(request: JobRequest, prepared: Prepared) -> dict[str, Any]:
    """Return the parameters of the flow."""
    own: dict[str, Any] = {"step": prepared.job.step, "params": dict(request.params)}
    if request.model:
        own = {"model": request.model, "model_options": request.model_options}
    return {
        "manifest": prepared.job.manifest,
        "output": prepared.job.output,
        **own,
        **request.options.parameters(),
        "cluster": request.cluster,
        "store": request.store,
    }
