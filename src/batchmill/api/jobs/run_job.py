"""Run a job from request to summary, for the command line and the Python API.

All checks run before a server, a process or a folder exists. Prefect is imported only if the job
has something to execute or to report, or names a saved block.
"""

import gc
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from batchmill.api.jobs.idle_run import JobEnd, NotIdleError, is_idle, run_idle
from batchmill.api.jobs.request import JobRequest, check_and_plan
from batchmill.core.layout import LEDGER_FOLDER
from batchmill.core.ledger.lease import check_free, holder
from batchmill.core.planning.forecast import Forecast
from batchmill.core.planning.prepare import Prepared, forecast_for
from batchmill.core.security.credentials import Access
from batchmill.core.sizes import counted
from batchmill.core.urls import is_url
from batchmill.core.user_step.import_reference import refuse_nested_run
from batchmill.datasets.publishing.run_summary import Summary, summarise
from batchmill.errors import OptionError, RunError
from batchmill.orchestration.server.embedded_server import has_server, starting_server
from batchmill.runs.run import handing_over
from batchmill.runs.shards.process_pool import shard_processes
from batchmill.steps.inference.gpus import check_device

if TYPE_CHECKING:
    from batchmill.blocks import DatasetStore, RayCluster


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


def run_job(request: JobRequest, display: JobDisplay) -> EndedRun:
    """Run a job and wait for its end.

    Args:
        request: The job.
        display: Shows the plan and the progress.

    Returns:
        The run. If more inputs failed than allowed, its `error` is set, and nothing is raised.

    Raises:
        ManifestError, StepError, OptionError, LedgerError, StoreError: A check failed. Nothing was
            started.
        ServiceError: Prefect or Ray cannot be used.
        CancelledError: The run was cancelled.
        RunError: The run ended before it was recorded in the ledger.
    """
    refuse_nested_run()
    with ExitStack() as held:
        request, prepared = check_and_plan(request, held)
        check_writable(prepared.job.output)
        options = request.options
        display.show_plan(prepared)
        if not options.run.wait:
            check_free(prepared.ledger)
        elif who := holder(prepared.ledger):
            display.say(f"Waiting until another run over the dataset has ended: {who}.")
        if request.cluster is not None:
            _check_cluster(cast("RayCluster", request.cluster))
        elif len(prepared.plan.pending):
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
        with display.follow(prepared):
            ended = _execute(request, prepared)
        left, ledger = prepared.plan.left, prepared.ledger
        return EndedRun(
            prepared=prepared,
            summary=summarise(ledger, ended.run),
            access=cast("DatasetStore", request.store).access if request.store else (),
            error=ended.error,
            note=ended.note,
            forecast=None if left is None else forecast_for(prepared, ledger.state(), left),
        )


def check_writable(output: str) -> None:
    """Raise OptionError if a folder cannot be written to. Leaves nothing behind.

    A bucket is not checked, because a trial costs a request and may leave an object.

    Args:
        output: The path or URL of the dataset, which may not exist yet.
    """
    if is_url(output):
        return
    place = Path(output, LEDGER_FOLDER)
    nearest = next(folder for folder in (place, *place.parents) if folder.exists())
    try:
        # The permissions are not enough to know it: the file system may be read-only.
        tempfile.TemporaryFile(dir=nearest).close()
    except OSError as error:
        raise OptionError(
            f"--output {output}: {nearest} cannot be written to ({error.strerror}). Change the "
            "permissions, or name another folder."
        ) from error


def _check_cluster(cluster: "RayCluster") -> None:
    """Raise OptionError or ServiceError if a cluster obviously cannot be used."""
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
            from batchmill.api.jobs.flow_run import log_level, run_flow

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
    work: dict[str, Any] = {"step": prepared.job.step, "params": dict(request.params)}
    groups = request.options.parameters()
    if request.model:
        work = {"model": request.model, "model_options": request.model_options}
        del groups["confinement"]  # A model is not confined.
    return {
        "manifest": prepared.job.manifest,
        "output": prepared.job.output,
        **work,
        **groups,
        "cluster": request.cluster,
        "store": request.store,
    }
