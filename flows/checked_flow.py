"""A flow that checks its job, and sees to a Prefect server, before a run of it begins."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, cast

import httpx
from batchmill.blocks.dataset_store import DatasetStore, as_store
from batchmill.blocks.ray_cluster import RayCluster, as_cluster
from batchmill.blocks.saved import check_saved, saved_name
from batchmill.flows.noop_run import finish, is_idle
from batchmill.flows.services.api import (
    lost_server_message,
    shared_api,
    wait_until_recorded,
)
from prefect import Flow
from prefect.client.schemas.objects import State

from batchmill.errors import CancelledError, RunError
from batchmill.execution.shard_process import shard_processes
from batchmill.ledger.lease import check_free
from batchmill.manifest import ManifestLike
from batchmill.manifest.saved import listed_manifest, save_manifest
from batchmill.planning.batching import Batching
from batchmill.planning.job import check_prune, make_job, prepare
from batchmill.policy import make_policy
from batchmill.runs.context import handing_over, prepare_once, tell_run
from batchmill.step.load import reference_to, refuse_nested_run
from batchmill.step.params import arguments_for
from batchmill.storage.access import access_to

# What may be given as block:NAME, and what makes the block of it.
_BLOCKS: dict[str, Callable[[Any], Any]] = {"cluster": as_cluster, "store": as_store}


class CheckedFlow(Flow[..., dict[str, Any]]):
    """A flow that checks its job, and sees to a Prefect server, before a run of it begins."""

    def __call__(  # type: ignore[override]  # Python callers may give what no form can.
        self,
        manifest: ManifestLike,
        step: str | Callable[..., Any],
        output: str | os.PathLike[str],
        **options: Any,
    ) -> dict[str, Any]:
        """Run the flow and return its summary.

        `manifest` may also be a list of paths or a DataFrame, and `step` a function or class that
        other processes can import. Raises ManifestError, StepError, OptionError, LedgerError or
        StoreError before anything is started, ServiceError if Prefect or Ray cannot be, and
        RunError if at the end not every input is ok.
        """
        refuse_nested_run()
        with ExitStack() as api:
            if any(saved_name(options.get(name)) is not None for name in _BLOCKS):
                api.enter_context(shared_api())
                options |= {name: _BLOCKS[name](options.get(name)) for name in _BLOCKS}
            store = options["store"] = as_store(options.get("store"))
            api.enter_context(access_to(store.access if store else []))
            return self._check_and_run(manifest, step, place_of_dataset(store, output), options)

    def _check_and_run(
        self,
        manifest: ManifestLike,
        step: str | Callable[..., Any],
        output: str,
        options: dict[str, Any],
    ) -> dict[str, Any]:
        if isinstance(manifest, str | os.PathLike):
            path, listed = os.fspath(manifest), None
        else:
            path, listed = listed_manifest(output), manifest
        work = {"manifest": path, "step": reference_to(step), "output": output}
        job = make_job(**arguments_for(make_job, options | work))
        # What the flow would refuse is told before a server is there.
        check_prune(job, prune=bool(options.get("prune")))
        Batching(**arguments_for(Batching, options))
        make_policy(**arguments_for(make_policy, options))
        prepared = prepare_once(job) if listed is None else prepare(job, listed)
        if not options.get("wait"):
            check_free(prepared.ledger)
        if options.get("cluster") is not None:
            options["cluster"] = as_cluster(options["cluster"])
            _check_cluster(options["cluster"])
        check_blocks(options["store"], options.get("cluster"))
        if listed is not None:
            save_manifest(prepared.manifest, job.manifest, job.input_column)
        if is_idle(prepared):
            how = {name: bool(options.get(name)) for name in ("prune", "wait")}
            done = finish(prepared, **how)
            if done is not None:
                return done
        with shard_processes() as processes, ExitStack() as api:
            if len(prepared.plan.pending) and not options.get("cluster"):
                # Now that Prefect has been imported, while a server may still be starting.
                processes.warm_up()
            api.enter_context(shared_api())
            handover = api.enter_context(handing_over(prepared))
            parameters = {"manifest": job.manifest, "step": job.step, "output": job.output}
            try:
                state: State[Any] = cast("Any", super()).__call__(
                    **options, **parameters, return_state=True
                )
            except httpx.TransportError as error:
                tell_run(handover.run)
                raise RunError(lost_server_message(error)) from error
            summary = prepared.ledger.read_summary(handover.run) if handover.run else None
            if summary and state.state_details.flow_run_id:
                wait_until_recorded(state.state_details.flow_run_id, handover.task_runs)
        tell_run(handover.run)
        if state.is_cancelled():
            raise CancelledError(state.message or "cancelled")
        if summary is None:
            state.result()  # Raises what ended the run early.
            raise RunError(f"the run ended as {state.name}: {state.message or 'no reason given'}")
        if state.is_completed():
            return summary
        raise RunError(state.message or state.name or "failed")


def _check_cluster(cluster: RayCluster) -> None:
    """Raise OptionError or ServiceError if it is plain that a cluster cannot be used."""
    from batchmill.flows.cluster.token import present_token

    present_token(cluster)
    from batchmill.flows.cluster.connection import check_cluster

    check_cluster(cluster)


def check_blocks(store: DatasetStore | None, cluster: RayCluster | None) -> None:
    """Raise OptionError for a store or cluster that may not be used here."""
    check_saved(store, "store")
    # A Ray on this machine, with nothing brought to it, runs no more than the step.
    if cluster and not (cluster.is_local and not cluster.runtime_env):
        check_saved(cluster, "cluster")


def place_of_dataset(store: DatasetStore | None, output: str | os.PathLike[str]) -> str:
    """Return a dataset's path or URL; in a store, its name may be given."""
    return store.place_of(os.fspath(output)) if store else os.fspath(output)
