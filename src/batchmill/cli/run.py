"""`batchmill run`: the main job."""

import json as json_text
import logging
import os
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Annotated, Any

from cyclopts import Parameter

from batchmill.batching import Batching
from batchmill.cli.console import console
from batchmill.cli.options import CLUSTER, NO_OPTIONS, WORK, JobOptions, Json, Manifest
from batchmill.cli.progress import showing_progress
from batchmill.errors import CancelledError, OptionError, RunError
from batchmill.job import Handover, Prepared, check_prune, handing_over, make_job, prepare
from batchmill.params import arguments_for, parse_pairs, read_object
from batchmill.policy import make_policy
from batchmill.storage.access import access_to
from batchmill.summary import failure_message, summarise


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
    store: Annotated[
        str | None,
        Parameter(
            group=WORK,
            help="Where the dataset is: block:NAME of a saved store. --output is a name in it.",
        ),
    ] = None,
    ray: Annotated[
        str | None,
        Parameter(
            group=CLUSTER,
            help="A Ray cluster: ray://HOST:10001, HOST:6379, auto, or block:NAME for a saved one. "
            "Default: a private Ray here.",
        ),
    ] = None,
    runtime_env: Annotated[
        str | None,
        Parameter(
            group=CLUSTER,
            help="What Ray brings to its machines (working_dir, py_modules, pip, env_vars): JSON, "
            "or a JSON or YAML file.",
        ),
    ] = None,
    shard_resource: Annotated[
        tuple[str, ...],
        Parameter(
            group=CLUSTER,
            negative=(),
            show_default=False,
            help="What each shard asks for, as num_gpus=1, num_cpus=4, memory=8G, or a resource of "
            "your own; may be given again. Default: a CPU for each of its workers.",
        ),
    ] = (),
    prune: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Remove files and rows of inputs that the manifest no longer lists.",
        ),
    ] = False,
    wait: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Wait for the end of another run over the dataset.",
        ),
    ] = False,
    json: Json = False,
    verbose: Annotated[
        bool,
        Parameter(
            alias="-v",
            negative=(),
            show_default=False,
            help="Show what Prefect and Ray have to say.",
        ),
    ] = False,
) -> None:
    """Run a step over every input of a manifest, and write the dataset.

    Inputs that are done already are not executed again. Examples:

    ```
    batchmill run words.csv --step batchmill.steps.words:split --output dataset --param num_chars=3
    batchmill run recordings/ --pattern '*.flac' --step batchmill.steps.audio:split -o clips
    ```
    """
    cluster = (
        ray,
        read_object(runtime_env, "--runtime-env") if runtime_env is not None else {},
        parse_pairs(shard_resource, "--shard-resource", "num_gpus=1"),
    )
    _set_loudness(verbose)
    with ExitStack() as held:
        if job is not None:
            others = (manifest, store, ray, runtime_env, shard_resource or None)
            if any(other is not None for other in others) or (
                replace(options, force=False) != NO_OPTIONS
            ):
                raise OptionError(
                    f"--job {job}: what to do, where and how is saved with it. Drop the other "
                    "options but --force, --prune and --wait, or change the saved job."
                )
            parameters = _load_job(job, held) | {"force": options.force}
        else:
            parameters = options.parameters(manifest)
            parameters["store"] = _load_store(store, held) if store is not None else None
        if parameters["store"]:
            parameters["output"] = parameters["store"].place_of(parameters["output"])
            held.enter_context(access_to(parameters["store"].access))
        _run(parameters | {"prune": prune, "wait": wait}, cluster, as_json=json)


def _load_job(name: str, held: ExitStack) -> dict[str, Any]:
    """Return the parameters of a saved job; the Prefect API stays at hand as long as `held`."""
    from batchmill.blocks.saved_job import as_job
    from batchmill.flows.api import shared_api

    held.enter_context(shared_api())
    parameters: dict[str, Any] = as_job(name).parameters()
    return parameters


def _load_store(name: str, held: ExitStack) -> Any:
    """Return a saved store; the Prefect API stays at hand as long as `held`."""
    from batchmill.blocks.dataset_store import as_store
    from batchmill.flows.api import shared_api

    held.enter_context(shared_api())
    return as_store(name)


def _run(
    parameters: dict[str, Any],
    cluster: tuple[str | None, dict[str, Any], dict[str, Any]],
    *,
    as_json: bool,
) -> None:
    job = make_job(**arguments_for(make_job, parameters))
    check_prune(job, prune=parameters["prune"])
    Batching(**arguments_for(Batching, parameters))
    make_policy(**arguments_for(make_policy, parameters))
    prepared = prepare(job)
    told = console(stderr=True)
    if not as_json:
        told.print(_to_do(prepared))
        for line in prepared.step_changes:
            told.print(f"All is executed again, for {line}.")
    # Imported now, for this takes a second or two, and bad input is to be told at once.
    from batchmill.blocks.ray_cluster import make_cluster
    from batchmill.flows.preprocess import preprocess

    parameters = {"cluster": make_cluster(*cluster)} | parameters
    begun = time.monotonic()
    quiet = as_json or not len(prepared.plan.pending)
    try:
        with (
            handing_over(prepared) as handover,
            showing_progress(prepared.ledger, told, quiet=quiet),
        ):
            preprocess(**parameters)
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


def _to_do(prepared: Prepared) -> str:
    counts = prepared.plan.counts
    pending = len(prepared.plan.pending)
    listed = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    unsettled = len(prepared.manifest.unsettled)
    left_out = f" {unsettled:,} left out, younger than --settle." if unsettled else ""
    return f"{len(prepared.manifest):,} inputs ({listed}); {pending:,} to execute.{left_out}"


def _tell(handover: Handover, as_json: bool, seconds: float, *, allowed: bool) -> None:
    prepared = handover.prepared
    summary = summarise(prepared.ledger, handover.run)
    if as_json:
        print(json_text.dumps(summary.as_json(), ensure_ascii=False))
    else:
        out = console()
        out.print(f"{summary.sentence()} ({summary.executed:,} executed in {seconds:.1f} s)")
        out.print(f"Dataset: {prepared.job.output}")
        if allowed and summary.failed:
            out.print(failure_message(summary, prepared.job.output).partition("\n")[2])


def _set_loudness(verbose: bool) -> None:
    """Keep Prefect's log off the terminal unless it is wanted; its API gets it all the same."""
    if verbose:
        logging.getLogger("batchmill").setLevel(logging.DEBUG)
    else:
        os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
        os.environ.setdefault("DO_NOT_TRACK", "1")
