"""Executes the shards of a run as Prefect task runs, on this machine or on a Ray cluster."""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self
from uuid import UUID

from prefect.runtime import flow_run

from batchmill.blocks.ray_cluster import RayCluster
from batchmill.core.failure_causes import SameCause
from batchmill.core.layout import STAGING
from batchmill.core.planning.batching import Cores
from batchmill.core.planning.run_spec import RunSpec, read_spec
from batchmill.core.security.credentials import Access
from batchmill.core.user_step.load import Step
from batchmill.errors import StoreError
from batchmill.orchestration.cancellation import Cancellation
from batchmill.orchestration.flow_observer import FlowObserver
from batchmill.orchestration.metrics import COLUMNS
from batchmill.orchestration.runners.scheduler import ShardScheduler
from batchmill.orchestration.runners.shard_runner import LocalRunner, ShardRunner
from batchmill.orchestration.server.api import record_ends, wait_until_recorded
from batchmill.runs.execute import Runner, ShardsEnd
from batchmill.runs.progress import RunWatcher
from batchmill.runs.run import Run
from batchmill.runs.shards.shard import Shard
from batchmill.steps.inference.gpus import gpus_for
from batchmill.tasks.shard import run_local_shard

_RECORD_SECONDS, _CANCEL_RECORD_SECONDS = 5.0, 1.0
# After the second signal, killed shards have this long to end.
_KILL_SECONDS = 3.0


@dataclass
class FlowRunner(Runner):
    """The runner of a flow run.

    The processes of the shards end with the block. Prefect records the ends of the task runs while
    the tables are written.

    Args:
        cluster: The Ray cluster. None: this machine, without Ray.
        access: The credentials that the shards need.
        cancellation: Detects that the flow run is cancelled.
        observer: Shows the progress in Prefect.
        step: The step.
    """

    cluster: RayCluster | None
    access: Sequence[Access]
    cancellation: Cancellation
    observer: FlowObserver
    step: Step
    _at_end: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        self._runner = self._make_runner()
        self.cancellation.listen()  # Ray has replaced the handler of SIGTERM.
        return self

    def __exit__(self, *exception: Any) -> None:
        self._at_end.__exit__(*exception)

    @property
    def cores(self) -> Cores:
        """The cores of this machine, or of the cluster."""
        return self._runner.cores

    def run(self, run: Run, shards: Sequence[Shard], num_workers: int) -> ShardsEnd:
        """Submit the shards as task runs, and wait for their ends."""
        self._runner.prepare(num_workers, run.probe())
        if self.cancellation.reason:
            return ShardsEnd(is_cancelled=True)
        metrics = self.observer.metrics
        more: dict[str, Any] = {"columns": COLUMNS, "on_records": metrics.record}
        watcher = RunWatcher(run.ledger, run.number, **(more if metrics.is_on else {}))
        spec = read_spec(run.ledger, run.number)
        watcher.same = SameCause(spec.policy.stop_after_same)
        has_to_stop = partial(self._has_to_stop, run, watcher, spec)
        scheduler = ShardScheduler(
            runner=self._runner,
            workers=num_workers,
            on_tick=has_to_stop,
            cancelled=self.cancellation.is_cancelled,
            most=spec.running if spec.pace_seconds else None,
        )
        self.cancellation.clean_up = lambda: _kill_shards(run, scheduler)
        try:
            scheduler.run(shards)
        finally:
            self._runner.release()
            self._at_end.callback(self._record_shards, scheduler)
        reasons = scheduler.queue.ended_early
        if has_to_stop() and not self.cancellation.reason:
            seen = watcher.poll()
            # The input that stopped the run may be the last one.
            if seen and seen.done < seen.total:
                reason = run.ledger.control.stop_reason(run.number)
                reasons.append(
                    reason or "The run was stopped early. Inputs without an outcome are pending."
                )
        return ShardsEnd(
            lost=scheduler.loss_policy.losses > 0,
            reasons=reasons,
            is_cancelled=self.cancellation.is_cancelled(),
        )

    def _has_to_stop(self, run: Run, watcher: RunWatcher, spec: RunSpec) -> bool:
        """Show the progress and the failures so far. Return whether the run has to stop.

        This is called about every second.
        """
        run.lease.ensure()
        progress = watcher.poll()
        reason = None
        if progress:
            self.observer.show(progress)
            if progress.failed > spec.failures_allowed:
                # A broken node must not stop the others.
                is_one = self.cores.total == self.cores.node
                same = watcher.same
                is_same = same.is_reached and (is_one or len(same.hosts) > 1)
                reason = "" if spec.policy.fail_fast else same.advice if is_same else None
        control = run.ledger.control
        reason = "" if self.cancellation.reason else reason
        if reason is not None and not control.stop_requested(run.number):
            control.request_stop(run.number, reason)
        return control.stop_requested(run.number)

    def _make_runner(self) -> ShardRunner:
        """Make the runner, which ends after `_record_shards`. Import Ray only for a cluster."""
        if self.cluster is None:
            return LocalRunner(self.access, gpus_for(self.step), self._at_end)
        self.cluster.present_token()
        from batchmill.orchestration.cluster.ray_runner import RayRunner

        return RayRunner(
            self.cluster,
            self.access,
            self._at_end,
            self.cancellation.is_cancelled,
            takes_gpu=self.step.takes_any_gpu,
        )

    def _record_shards(self, scheduler: ShardScheduler) -> None:
        """Record in Prefect how the shards ended, before their processes end."""
        lost_contact = self.cancellation.lost_contact
        if self.cluster is None and not self.cancellation.reason and not lost_contact:
            return  # The task runs are threads of this process, which reports their ends itself.
        this_run = UUID(flow_run.get_id())
        seconds = _CANCEL_RECORD_SECONDS if self.cancellation.reason else _RECORD_SECONDS
        wait_until_recorded(this_run, len(scheduler.queue.ends) + 1, seconds)
        ends = scheduler.queue.ends
        record_ends(this_run, run_local_shard, ends, after_outage=lost_contact)


def _kill_shards(run: Run, scheduler: ShardScheduler) -> None:
    """Kill the shards, and remove the files that they had not committed."""
    scheduler.kill(_KILL_SECONDS)
    with suppress(StoreError):  # The next run removes the rest.
        run.ledger.store.remove(STAGING)
