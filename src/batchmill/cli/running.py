"""A job from its parameters to the last line that is printed: what `run` and `infer` do."""

import json as json_text
import logging
import os
import sys
import time
from contextlib import ExitStack, redirect_stdout
from typing import Any

from batchmill.cli.console import console
from batchmill.cli.options import RunOptions
from batchmill.cli.plan import partition_lines, partitions_as_json
from batchmill.cli.progress import showing_progress
from batchmill.cli.workers import batching_of, measured
from batchmill.errors import CancelledError, RunError
from batchmill.flows.noop_run import finish, is_idle
from batchmill.ledger.lease import check_free
from batchmill.maintenance.leakage import find_duplicates
from batchmill.planning.batching import own_cores
from batchmill.planning.job import Prepared, check_prune, make_job, prepare
from batchmill.planning.partition_assignment import has_assigned
from batchmill.policy import make_policy
from batchmill.runs.context import RunContext, handing_over
from batchmill.runs.summary import failure_message, summarise
from batchmill.step.params import arguments_for, parse_pairs, read_object
from batchmill.storage.access import access_to

# A cluster's address, runtime environment, and what a shard asks for.
_Cluster = tuple[str | None, dict[str, Any], dict[str, Any]]
_NO_CLUSTER: _Cluster = (None, {}, {})


def run_job(parameters: dict[str, Any], options: RunOptions) -> None:
    """Run the job that the flow's parameters describe, and tell what came of it.

    Raises what the flow raises: OptionError and the like before anything is started, RunError if
    not every input is ok.
    """
    runtime_env = options.runtime_env
    cluster: _Cluster = (
        options.ray,
        read_object(runtime_env, "--runtime-env") if runtime_env is not None else {},
        parse_pairs(options.shard_resource, "--shard-resource", "num_gpus=1"),
    )
    _set_loudness(options.verbose)
    with ExitStack() as held:
        if options.store is not None:
            parameters = parameters | {"store": _load_store(options.store, held)}
        store = parameters.get("store")
        if store:
            parameters = parameters | {"output": store.place_of(parameters["output"])}
            held.enter_context(access_to(store.access))
        more = {"prune": options.prune, "wait": options.wait}
        _run(parameters | more, options, cluster)


def _load_store(name: str, held: ExitStack) -> Any:
    """Return a saved store; the Prefect API stays at hand as long as `held`."""
    from batchmill.blocks.dataset_store import as_store
    from batchmill.flows.services.api import shared_api

    held.enter_context(shared_api())
    return as_store(name)


def _run(parameters: dict[str, Any], options: RunOptions, cluster: _Cluster) -> None:
    as_json = options.json
    job = make_job(**arguments_for(make_job, parameters))
    check_prune(job, prune=parameters["prune"])
    batching_of(parameters)
    make_policy(**arguments_for(make_policy, parameters))
    prepared = prepare(job)
    told = console(stderr=True)
    if not as_json:
        told.print(_to_do(prepared))
        for line in prepared.step_changes:
            told.print(f"All is executed again, for {line}.")
        for line in partition_lines(prepared):
            told.print(line)
    parameters, why = measured(parameters, prepared, own_cores(), None if as_json else told)
    if why and not as_json:
        told.print(f"num_workers {parameters['num_workers']}: {why}.")
    begun = time.monotonic()
    quiet = as_json or not len(prepared.plan.pending)
    try:
        with (
            handing_over(prepared) as handover,
            showing_progress(prepared.ledger, told, quiet=quiet),
        ):
            if not _finish_idle(prepared, parameters, cluster):
                _run_flow(prepared, parameters, cluster)
    except CancelledError:
        raise
    except RunError as error:
        if not handover.run:
            raise
        _tell(handover, as_json, time.monotonic() - begun, allowed=False)
        # If it has several lines, the first has just been said.
        said, _, rest = str(error).partition("\n")
        raise RunError(rest or said) from error
    _tell(handover, as_json, time.monotonic() - begun, allowed=True)


def _finish_idle(prepared: Prepared, parameters: dict[str, Any], cluster: _Cluster) -> bool:
    """Do a run without Prefect that has nothing to execute or report; False if it has.

    Only the flow can check a cluster.
    """
    if not is_idle(prepared) or cluster != _NO_CLUSTER:
        return False
    return finish(prepared, prune=parameters["prune"], wait=parameters["wait"]) is not None


def _run_flow(prepared: Prepared, parameters: dict[str, Any], cluster: _Cluster) -> None:
    """Run the flow. A server that it needs begins to start before Prefect is imported."""
    from batchmill.flows.services.embedded_server import starting_server

    if not parameters["wait"]:
        check_free(prepared.ledger)
    with starting_server(), redirect_stdout(sys.stderr):  # Ray prints to stdout.
        # This takes a second or two. Bad input has been reported by now.
        from batchmill.blocks.ray_cluster import make_cluster
        from batchmill.flows.preprocess import preprocess

        preprocess(**({"cluster": make_cluster(*cluster)} | parameters))


def _to_do(prepared: Prepared) -> str:
    counts = prepared.plan.counts
    pending = len(prepared.plan.pending)
    listed = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    unsettled = len(prepared.manifest.unsettled)
    left_out = f" {unsettled:,} left out, younger than --settle." if unsettled else ""
    return f"{len(prepared.manifest):,} inputs ({listed}); {pending:,} to execute.{left_out}"


def _tell(handover: RunContext, as_json: bool, seconds: float, *, allowed: bool) -> None:
    prepared = handover.prepared
    summary = summarise(prepared.ledger, handover.run)
    if as_json:
        found = partitions_as_json(prepared) | summary.as_json()
        print(json_text.dumps(found, ensure_ascii=False))
    else:
        out = console()
        out.print(f"{summary.sentence()} ({summary.executed:,} executed in {seconds:.1f} s)")
        out.print(f"Dataset: {prepared.job.output}")
        if allowed and summary.failed:
            out.print(failure_message(summary, prepared.job.output).partition("\n")[2])
        # Nothing new has no new duplicates, and to look for them takes a while.
        is_new = summary.executed or has_assigned(prepared.ledger, handover.run)
        duplicates = sum(1 for _ in find_duplicates(prepared.ledger)) if is_new else 0
        if duplicates:
            out.print(
                "Inputs with the same content are in different partitions (contents: "
                f"{duplicates:,}). Which: batchmill verify {prepared.job.output}"
            )


def _set_loudness(verbose: bool) -> None:
    """Keep Prefect's log off the terminal unless it is wanted; its API gets it all the same."""
    if verbose:
        logging.getLogger("batchmill").setLevel(logging.DEBUG)
    else:
        os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
        os.environ.setdefault("DO_NOT_TRACK", "1")
