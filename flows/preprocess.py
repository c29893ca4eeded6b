"""The main flow: one step over every input of a manifest."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

from batchmill.blocks.dataset_store import DatasetStore, Store, as_store
from batchmill.blocks.ray_cluster import RayCluster, as_cluster
from batchmill.flows.cancellation import Cancellation
from batchmill.flows.checked_flow import CheckedFlow, check_blocks, place_of_dataset
from batchmill.flows.deployment_checks import finding_step, refuse_relative
from batchmill.flows.display.run_reporter import RunReporter
from batchmill.flows.parameter_schema import (
    JSON_OBJECT,
    NUMBER_OR_SHARE,
    SIZE,
    at_least,
    more_than,
    of_form,
    titled,
)
from batchmill.flows.runners.local import LocalRunner
from batchmill.flows.runners.runner import ShardRunner
from batchmill.flows.runners.scheduler import ShardScheduler
from batchmill.flows.services.api import end_dead_run, record_ends, wait_until_recorded
from batchmill.tasks.local_shard import run_local_shard
from batchmill.tasks.manifest import load_manifest
from batchmill.tasks.metadata import write_metadata
from batchmill.tasks.report import write_report
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed
from prefect.utilities.annotations import opaque
from pydantic import BeforeValidator

from batchmill.planning.batching import Batching
from batchmill.planning.job import check_prune, make_job
from batchmill.planning.run_spec import read_work
from batchmill.policy import (
    DEFAULT_RETRIES,
    DEFAULT_TIMEOUT_SECONDS,
    FailurePolicy,
    make_policy,
)
from batchmill.runs.context import tell_task_runs
from batchmill.runs.progress import RunWatcher
from batchmill.runs.run import Run, open_run
from batchmill.runs.summary import failure_message, summarise
from batchmill.storage.access import Access, access_to

# Lost shard processes of one run, after which their shards are not submitted again.
_LOSSES_ALLOWED = 50
_RECORD_SECONDS, _CANCEL_RECORD_SECONDS = 5.0, 1.0
# The form begins with it; nobody changes it.
_NO_PARAMS: dict[str, Any] = {}


def _run_name() -> str:
    """Name a flow run after what it makes, with which step."""
    parameters = flow_run.get_parameters()
    step = str(parameters["step"]).rpartition(":")[2]
    return f"{Path(str(parameters['output'])).name}: {step}"


@partial(CheckedFlow, name="preprocess", flow_run_name=_run_name)
@titled(
    partition="Partitions",
    group_by="Keep together by column",
    stratify="Stratify by column",
    num_workers="DataLoader workers",
    timeout_seconds="Time limit in seconds",
    max_failures="Failures allowed",
    wait="Wait for another run",
    cluster="Ray cluster",
)
def preprocess(
    manifest: str,
    step: str,
    output: str,
    params: Annotated[dict[str, Any] | None, JSON_OBJECT] = _NO_PARAMS,
    input_column: str = "input",
    root: str | None = None,
    pattern: str = "*",
    settle_seconds: Annotated[float, at_least(0)] = 0,
    partition: str | None = None,
    group_by: str | None = None,
    stratify: str | None = None,
    seed: int = 0,
    batch_size: Annotated[int | None, at_least(1)] = None,
    num_workers: Annotated[int | None, at_least(0)] = None,
    retries: Annotated[int, at_least(0)] = DEFAULT_RETRIES,
    timeout_seconds: Annotated[float | None, more_than(0)] = DEFAULT_TIMEOUT_SECONDS,
    memory_limit: Annotated[str | None, of_form(SIZE)] = None,
    max_failures: Annotated[str, of_form(NUMBER_OR_SHARE)] = "0",
    fail_fast: bool = False,
    force: bool = False,
    prune: bool = False,
    wait: bool = False,
    cluster: Annotated[RayCluster | None, BeforeValidator(as_cluster)] = None,
    store: Store = None,
) -> Any:
    """Run one step over every input that a manifest lists.

    Args:
        manifest: CSV, TSV, JSON Lines or Parquet file with a row for each input; or a folder, or
            a glob.
        step: The function or Dataset class to run, as package.module:attribute.
        output: The dataset: a folder or URL, new or of an earlier run, which then goes on.
        params: The step's keyword arguments, as {"num_chars": 3}.
        input_column: The manifest's column that has the inputs' paths.
        root: The folder that relative inputs are relative to; inputs must lie below it. By
            default, the manifest's folder.
        pattern: Of a folder, only files whose name or relative path fits it.
        settle_seconds: Of a folder or glob, leave out files that were written to within so many
            seconds: somebody may be writing them still.
        partition: Partitions and their shares, as train=0.8,validation=0.1,test=0.1 or in percent.
            The tables then have a column partition.
        group_by: A column of the manifest, as of the speaker: rows with the same value stay in one
            partition.
        stratify: A column of the manifest, as of the label: the groups of each value come near the
            shares.
        seed: Another one divides otherwise.
        batch_size: Inputs in a batch, which one DataLoader worker works on. By default, from the
            number of inputs and cores.
        num_workers: DataLoader workers in each shard. By default, the machine's cores, at most 8.
        retries: How often an input may be executed again for its own faults.
        timeout_seconds: After so many seconds at one input, its worker is killed.
        memory_limit: With more memory at one input, as 2G or 500M, its worker is killed.
        max_failures: With more inputs than these not ok, a number or a share as 2%, the run is
            Failed.
        fail_fast: With more failures than that, stop early: what is not begun stays pending.
        force: Execute all inputs, also those that are done.
        prune: Remove the files and rows of inputs that the manifest no longer lists.
        wait: If another run is going on over the dataset, wait for its end.
        cluster: The Ray cluster that runs the shards. By default, they run on the machine of the
            flow run, without Ray.
        store: Where the dataset is, and the credentials for it: the output may then be a name in
            it.
    """
    dataset_store: DatasetStore | None = as_store(store)
    check_blocks(dataset_store, cluster)
    output = place_of_dataset(dataset_store, output)
    refuse_relative(manifest=manifest, output=output, root=root)
    job = make_job(
        manifest=manifest,
        step=step,
        output=output,
        params=params,
        input_column=input_column,
        root=root,
        pattern=pattern,
        settle_seconds=settle_seconds,
        force=force,
        partition=partition,
        group_by=group_by,
        stratify=stratify,
        seed=seed,
    )
    check_prune(job, prune=prune)
    batching = Batching(batch_size=batch_size, num_workers=num_workers)
    policy = make_policy(
        retries=retries,
        timeout_seconds=timeout_seconds,
        memory_limit=memory_limit,
        max_failures=max_failures,
        fail_fast=fail_fast,
    )
    access = dataset_store.access if dataset_store else []
    cancellation = Cancellation(UUID(flow_run.get_id()))
    with (
        access_to(access),
        cancellation.listening(),
        finding_step(step),
        open_run(load_manifest(job), wait=wait) as run,
        # Prefect records how the shards ended while tables are written.
        ExitStack() as at_end,
    ):
        story = RunReporter(job.output, run.number)
        story.begin(inputs=len(run.prepared.manifest), pending=run.pending, step=job.step)
        ended_early = _execute(
            run,
            batching,
            policy,
            cluster,
            access,
            cancellation,
            story,
            at_end,
        )
        if cancellation.reason:
            story.end(summarise(run.ledger, run.number), "Cancelled")
            return Cancelled(message=_cancelled_message(run, cancellation.reason))
        run.settle(prune=prune)
        whole: Any = opaque(run.prepared)  # Prefect need not look into it for futures.
        write_metadata(whole)
        summary = run.end()
        is_told = run.report_is_stale
        tell_task_runs(run.task_runs + 2 + is_told)  # With load_manifest and write_metadata.
        if is_told:
            ledger: Any = opaque(run.ledger)
            story.sum_up(write_report(ledger, run.number, job.output))
    accepted = summary.accepted(policy.failures_allowed(summary.inputs))
    story.end(summary, "Completed" if accepted else "Failed")
    if not accepted:
        return Failed(message="\n".join([failure_message(summary, job.output), *ended_early]))
    return Completed(message=summary.sentence(), data=summary.as_json())


def _note_flow_run(run: Run) -> None:
    """Note which flow run this is, and end the one before if its process did not come to it."""
    run.ledger.note_flow_run(run.number, str(flow_run.get_id()))
    before = run.ledger.flow_run_of(run.number - 1)
    if before:
        end_dead_run(UUID(before), f"Its process was killed. Run {run.number} goes on from there.")


def _cancelled_message(run: Run, reason: str) -> str:
    return f"{reason}: {summarise(run.ledger, run.number).sentence()}"


def _execute(
    run: Run,
    batching: Batching,
    policy: FailurePolicy,
    cluster: RayCluster | None,
    access: Sequence[Access],
    cancellation: Cancellation,
    story: RunReporter,
    at_end: ExitStack,
) -> list[str]:
    """Run the pending inputs; return why some shards ended early. The runner ends `at_end`."""
    if not run.pending:
        run.divide_nothing(policy)
        _note_flow_run(run)
        return []
    this_run = UUID(flow_run.get_id())
    runner = at_end.enter_context(_make_runner(run, cluster, access, cancellation))
    cancellation.listen()  # Ray takes SIGTERM for itself.
    layout, shards = run.divide(batching, runner.cores, policy)
    _note_flow_run(run)
    runner.prepare(layout.num_workers)
    if cancellation.reason:
        return []
    watcher = RunWatcher(run.ledger, run.number)
    enough = read_work(run.ledger, run.number).enough_failures

    def look() -> bool:
        """Show what has failed so far; return whether the run has been asked to stop."""
        run.lease.check()
        seen = watcher.poll()
        if seen:
            story.show(seen)
            if enough is not None and seen.failed > enough:
                run.ledger.request_stop(run.number)
        if cancellation.reason and not run.ledger.stop_requested(run.number):
            run.ledger.request_stop(run.number)
        return run.ledger.stop_requested(run.number)

    scheduler = ShardScheduler(
        runner=runner,
        workers=layout.num_workers,
        look=look,
        cancelled=lambda: bool(cancellation.reason),
        losses_allowed=_LOSSES_ALLOWED,
    )
    try:
        scheduler.run(shards)
    finally:
        runner.release()
        run.task_runs, run.lost = len(scheduler.ends), scheduler.losses > 0
        at_end.callback(_record, this_run, scheduler, cancellation)
    if look() and not cancellation.reason:
        scheduler.ended_early.append("It was stopped early; what was not begun is pending.")
    return scheduler.ended_early


def _make_runner(
    run: Run, cluster: RayCluster | None, access: Sequence[Access], cancellation: Cancellation
) -> ShardRunner:
    """Make the runner that a run asks for; Ray is imported only for a cluster."""
    if cluster is None:
        return LocalRunner(access)
    from batchmill.flows.cluster.token import present_token

    present_token(cluster)
    from batchmill.flows.cluster.ray_runner import RayRunner

    return RayRunner(cluster, access, run.probe, lambda: bool(cancellation.reason))


def _record(this_run: UUID, scheduler: ShardScheduler, cancellation: Cancellation) -> None:
    """See to it that the API knows how the shards ended, before the runner ends their processes."""
    seconds = _CANCEL_RECORD_SECONDS if cancellation.reason else _RECORD_SECONDS
    wait_until_recorded(this_run, len(scheduler.ends) + 1, seconds)
    record_ends(this_run, run_local_shard, scheduler.ends)
