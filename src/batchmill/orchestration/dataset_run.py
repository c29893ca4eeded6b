"""The part of a flow run that holds the lease: execute shards, publish the dataset, report."""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any, Self
from uuid import UUID

from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Crashed, Failed
from prefect.utilities.annotations import opaque

from batchmill.blocks.ray_cluster import RayCluster
from batchmill.errors import StoreError
from batchmill.layout import STAGING
from batchmill.options.failure_policy import FailurePolicy
from batchmill.options.groups import ExecutionOptions
from batchmill.orchestration.cancellation import Cancellation
from batchmill.orchestration.display.run_reporter import RunReporter
from batchmill.orchestration.runners.local import LocalRunner
from batchmill.orchestration.runners.runner import ShardRunner
from batchmill.orchestration.runners.scheduler import ShardScheduler
from batchmill.orchestration.server.api import end_flow_run, record_ends, wait_until_recorded
from batchmill.planning.batching import Batching
from batchmill.planning.run_spec import read_work
from batchmill.runs.context import report_task_runs
from batchmill.runs.progress import RunWatcher
from batchmill.runs.run import Run
from batchmill.runs.summary import failure_message, summarise
from batchmill.runs.worker_number import choose_workers
from batchmill.security.credentials import Access
from batchmill.tasks.local_shard import run_local_shard
from batchmill.tasks.metadata import write_metadata
from batchmill.tasks.report import write_report

# After this many lost shard processes in one run, lost shards are not submitted again.
_LOSSES_ALLOWED = 50
_RECORD_SECONDS, _CANCEL_RECORD_SECONDS = 5.0, 1.0
# After the second signal, killed shards have this long to end.
_KILL_SECONDS = 3.0


class DatasetRun:
    """One run over a dataset, which Prefect shows as a flow run.

    Use it as a context manager: the runner's processes end with the block. Prefect records the ends
    of the shards while the tables are written.
    """

    def __init__(self, run: Run, policy: FailurePolicy, cancellation: Cancellation) -> None:
        self._run = run
        self._policy = policy
        self._cancellation = cancellation
        self._reporter = RunReporter(run.prepared.job.output, run.number)
        self._at_end = ExitStack()
        self._ended_early: Sequence[str] = ()

    def __enter__(self) -> Self:
        prepared = self._run.prepared
        self._reporter.begin(
            inputs=len(prepared.manifest), pending=self._run.pending, step=prepared.job.step
        )
        return self

    def __exit__(self, *exception: Any) -> None:
        self._at_end.__exit__(*exception)

    def execute(
        self, execution: ExecutionOptions, cluster: RayCluster | None, access: Sequence[Access]
    ) -> None:
        """Run the pending inputs as shards, on a cluster or on this machine.

        Args:
            execution: How to divide the inputs into shards.
            cluster: The Ray cluster. None: this machine, without Ray.
            access: The credentials that the shards need.
        """
        run = self._run
        if not run.pending:
            run.divide_nothing(self._policy)
            self._record_flow_run()
            return
        runner = self._at_end.enter_context(self._make_runner(cluster, access))
        self._cancellation.listen()  # Ray has replaced the handler of SIGTERM.
        execution, reason = choose_workers(execution, run.prepared, runner.cores.node)
        batching = Batching.from_options(execution, reason)
        layout, shards = run.divide(batching, runner.cores, self._policy)
        self._record_flow_run()
        runner.prepare(layout.num_workers)
        if self._cancellation.reason:
            return
        watch = _StopConditions(run, self._reporter, self._cancellation)
        scheduler = ShardScheduler(
            runner=runner,
            workers=layout.num_workers,
            on_tick=watch.check,
            cancelled=lambda: bool(self._cancellation.reason),
            losses_allowed=_LOSSES_ALLOWED,
        )
        self._cancellation.at_second_signal(lambda: self._kill_shards(scheduler))
        try:
            scheduler.run(shards)
        finally:
            runner.release()
            run.task_runs, run.lost = len(scheduler.queue.ends), scheduler.losses > 0
            self._at_end.callback(self._record_shards, scheduler)
        if watch.check() and not self._cancellation.reason:
            scheduler.queue.ended_early.append(
                "The run was stopped early. Inputs without an outcome are pending."
            )
        self._ended_early = scheduler.queue.ended_early

    def finish(self, *, prune: bool) -> Any:
        """Publish the dataset. A cancelled run publishes nothing.

        Args:
            prune: Also remove the files and rows of inputs that are no longer in the manifest.

        Returns:
            The flow run's final state.
        """
        run, job = self._run, self._run.prepared.job
        if self._cancellation.reason:
            summary = summarise(run.ledger, run.number)
            self._reporter.end(summary, "Cancelled")
            return Cancelled(message=f"Cancelled {self._cancellation.reason}. {summary.sentence()}")
        run.finalize(prune=prune)
        prepared: Any = opaque(run.prepared)  # Keeps Prefect from searching it for futures.
        write_metadata(prepared)
        summary = run.end()
        is_stale = run.report_is_stale
        report_task_runs(run.task_runs + 2 + is_stale)  # With load_manifest and write_metadata.
        if is_stale:
            ledger: Any = opaque(run.ledger)
            self._reporter.sum_up(write_report(ledger, run.number, job.output))
        accepted = summary.accepted(self._policy)
        self._reporter.end(summary, "Completed" if accepted else "Failed")
        if not accepted:
            lines = [failure_message(summary, job.output), *self._ended_early]
            return Failed(message="\n".join(lines))
        return Completed(message=summary.sentence(), data=summary.as_json())

    def _make_runner(self, cluster: RayCluster | None, access: Sequence[Access]) -> ShardRunner:
        """Make the runner. Ray is imported only for a cluster."""
        if cluster is None:
            return LocalRunner(access)
        from batchmill.orchestration.cluster.token import present_token

        present_token(cluster)
        from batchmill.orchestration.cluster.ray_runner import RayRunner

        return RayRunner(cluster, access, self._run.probe, lambda: bool(self._cancellation.reason))

    def _record_flow_run(self) -> None:
        """Record the id of this flow run. Mark the previous one as crashed if it was killed."""
        run, own = self._run, str(flow_run.get_id())
        run.ledger.control.record_flow_run(run.number, own)
        before = run.ledger.control.read_flow_run(run.number - 1)
        # After Retry in Prefect, the same flow run makes another run over the dataset.
        if before and before != own:
            reason = f"The process was killed. Run {run.number} resumes the work."
            end_flow_run(UUID(before), Crashed(message=reason))

    def _kill_shards(self, scheduler: ShardScheduler) -> None:
        """Kill the shards, and remove the files that they had not committed."""
        scheduler.kill(_KILL_SECONDS)
        with suppress(StoreError):  # The next run removes the rest.
            self._run.ledger.store.remove(STAGING)

    def _record_shards(self, scheduler: ShardScheduler) -> None:
        """Record in Prefect how the shards ended, before their processes end."""
        this_run = UUID(flow_run.get_id())
        seconds = _CANCEL_RECORD_SECONDS if self._cancellation.reason else _RECORD_SECONDS
        wait_until_recorded(this_run, len(scheduler.queue.ends) + 1, seconds)
        record_ends(this_run, run_local_shard, scheduler.queue.ends)


class _StopConditions:
    """Checks about every second whether the run has to stop, while shards run."""

    def __init__(self, run: Run, reporter: RunReporter, cancellation: Cancellation) -> None:
        self._run = run
        self._reporter = reporter
        self._cancellation = cancellation
        self._watcher = RunWatcher(run.ledger, run.number)
        self._enough_failures = read_work(run.ledger, run.number).enough_failures

    def check(self) -> bool:
        """Show the progress and the failures so far. Return whether the run has to stop."""
        run = self._run
        run.lease.check()
        progress = self._watcher.poll()
        if progress:
            self._reporter.show(progress)
            enough = self._enough_failures
            if enough is not None and progress.failed > enough:
                run.ledger.control.request_stop(run.number)
        if self._cancellation.reason and not run.ledger.control.stop_requested(run.number):
            run.ledger.control.request_stop(run.number)
        return run.ledger.control.stop_requested(run.number)
