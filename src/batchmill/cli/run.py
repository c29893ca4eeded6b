"""`batchmill run`: the main job."""

import json as json_text
import logging
import os
import time
from typing import Annotated

from cyclopts import Parameter

from batchmill.batching import Batching
from batchmill.cli.console import console
from batchmill.cli.options import CLUSTER, JobOptions, Json, Manifest
from batchmill.cli.progress import showing_progress
from batchmill.errors import CancelledError, RunError
from batchmill.job import Handover, Prepared, check_prune, handing_over, prepare
from batchmill.params import parse_pairs, read_object
from batchmill.summary import failure_message, summarise


def run(
    manifest: Manifest,
    /,
    *,
    options: JobOptions,
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
    job = options.job(manifest)
    check_prune(job, prune=prune)
    environment = read_object(runtime_env, "--runtime-env") if runtime_env is not None else {}
    amounts = parse_pairs(shard_resource, "--shard-resource", "num_gpus=1")
    Batching(batch_size=options.batch_size, num_workers=options.num_workers)
    options.policy()
    prepared = prepare(job)
    told = console(stderr=True)
    if not json:
        told.print(_to_do(prepared))
        for line in prepared.step_changes:
            told.print(f"All is executed again, for {line}.")
    _set_loudness(verbose)
    # Imported now, for this takes a second or two, and bad input is to be told at once.
    from batchmill.blocks.ray_cluster import make_cluster
    from batchmill.flows.preprocess import preprocess

    cluster = make_cluster(ray, environment, amounts)

    begun = time.monotonic()
    try:
        with (
            handing_over(prepared) as handover,
            showing_progress(prepared.ledger, told, quiet=json or not len(prepared.plan.pending)),
        ):
            preprocess(
                job.manifest,
                job.step,
                job.output,
                params=dict(job.params),
                input_column=job.input_column,
                root=job.root,
                pattern=job.pattern,
                settle_seconds=job.settle_seconds,
                batch_size=options.batch_size,
                num_workers=options.num_workers,
                retries=options.retries,
                timeout_seconds=options.timeout,
                memory_limit=options.memory_limit,
                max_failures=options.max_failures,
                fail_fast=options.fail_fast,
                force=options.force,
                prune=prune,
                wait=wait,
                cluster=cluster,
            )
    except CancelledError:
        raise
    except RunError as error:
        if not handover.run:
            raise
        _tell(handover, json, time.monotonic() - begun, allowed=False)
        # If it has several lines, the first has just been said.
        said, _, rest = str(error).partition("\n")
        raise RunError(rest or said) from error
    _tell(handover, json, time.monotonic() - begun, allowed=True)


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
