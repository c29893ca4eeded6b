"""A job before it runs: its arguments, the saved blocks that they name, its checks and its plan."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from batchmill.core.manifest import ManifestLike
from batchmill.core.manifest.records import listed_manifest
from batchmill.core.options.job_options import JobSettings, ModelOptions
from batchmill.core.planning.job import make_job
from batchmill.core.planning.prepare import Prepared, prepare
from batchmill.core.security.credentials import access_to
from batchmill.runs.workers.landlock import check_support
from batchmill.steps.inference.model_step import make_inference

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


def check_and_plan(request: JobRequest, held: ExitStack) -> tuple[JobRequest, Prepared]:
    """Check a request and plan its job. Nothing is started or written.

    Args:
        request: The job.
        held: Keeps the store of the dataset open until it is closed.

    Returns:
        The request with the blocks that it names, and the job with its plan.

    Raises:
        ManifestError, StepError, OptionError, LedgerError, StoreError: A check failed.
    """
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
        manifest=manifest, step=step, output=output, params=params, options=request.options
    )
    if job.confinement and request.cluster is None:
        check_support(job.confinement.writable)
    return request, prepare(job, listed)


def _with_blocks(request: JobRequest, held: ExitStack) -> JobRequest:
    """Replace the names of saved blocks by the blocks. Open the store until `held` is closed."""
    if request.cluster is None and request.store is None:
        return request
    from batchmill.blocks.dataset_store import as_store, place_of_dataset
    from batchmill.blocks.ray_cluster import as_cluster
    from batchmill.blocks.saved_block import saved_name
    from batchmill.flows.deployment_checks import check_blocks

    if any(saved_name(block) is not None for block in (request.cluster, request.store)):
        from batchmill.orchestration.server.api import shared_api

        held.enter_context(shared_api())
    cluster, store = as_cluster(request.cluster), as_store(request.store)
    check_blocks(store, cluster)
    held.enter_context(access_to(store.access if store else []))
    output = place_of_dataset(store, request.output)
    return replace(request, cluster=cluster, store=store, output=output)
