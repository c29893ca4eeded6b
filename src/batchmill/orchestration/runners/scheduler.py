"""Submits the shards of one run as Prefect task runs, and collects how they ended.

`loss_policy` decides what happens when a shard loses its process or its node. `shard_queue` moves
inputs to nodes that would be idle.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from prefect.logging import get_run_logger
from prefect.states import Cancelled, Crashed

from batchmill.errors import RunError
from batchmill.orchestration.runners.loss_policy import LOSSES_ALLOWED, LossPolicy
from batchmill.orchestration.runners.shard_queue import ShardQueue, SubmittedShard
from batchmill.orchestration.runners.shard_runner import ShardRunner
from batchmill.runs.shards.shard import Shard

_TICK_SECONDS = 1.0
# The longest delay of a signal. Python runs no signal handler while Ray waits.
_WAIT_SECONDS = 0.2
# A shard checks for a stop request every two seconds. Its current inputs then get three seconds.
_GRACE_SECONDS = 6.0
# A killed task run has this long to report its end.
_KILL_REPORT_SECONDS = 2.0
# Some shards wait in the runner's queue, so a free slot can begin one at once.
_IN_FLIGHT_PER_SLOT = 2


@dataclass(kw_only=True)
class ShardScheduler:
    """Runs the shards of one run, with a bounded number of task runs at a time.

    Args:
        runner: Runs the shards.
        workers: The number of DataLoader workers in each shard.
        on_tick: Called about every second. After it returns true, no shard is submitted.
        cancelled: Returns true after the run is cancelled. Shards that do not end soon are then
            killed.
        losses_allowed: After this many losses without a completed shard in between, no lost shard
            is submitted again.
        most: The most shards at a time, because they share a limit of the rate. None: no limit.

    Attributes:
        queue: The waiting and running shards, and how the task runs have ended.
        loss_policy: Counts the lost processes and nodes.
    """

    runner: ShardRunner
    workers: int
    on_tick: Callable[[], bool]
    cancelled: Callable[[], bool]
    losses_allowed: int = LOSSES_ALLOWED
    most: int | None = None
    queue: ShardQueue = field(init=False)
    loss_policy: LossPolicy = field(init=False)
    _stopped: bool = False
    _cancelled_since: float | None = None
    _killed: bool = False

    def __post_init__(self) -> None:
        self.queue = ShardQueue(runner=self.runner, workers=self.workers)
        self.loss_policy = LossPolicy(self.queue, self.losses_allowed)

    def run(self, shards: Sequence[Shard]) -> None:
        """Run shards until each has ended, or the run has stopped. An error kills them.

        Args:
            shards: The shards in the order in which they are submitted.

        Raises:
            LedgerError: The ledger has a damaged part.
            RunError: The runner is lost.
            StoreError: The dataset cannot be read or written.
        """
        try:
            self._run(shards)
        except BaseException as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            for submitted in self.queue.running.values():
                self.queue.record_end(submitted, Crashed(message=reason))
            # Ray may outlive this run. A runner that is lost would not respond.
            if not isinstance(error, RunError):
                with suppress(RunError):  # It is lost now. `error` came first.
                    self.queue.kill_running()
            raise

    def kill(self, seconds: float) -> None:
        """Kill the running shards and wait for their ends. `run` must not continue afterwards.

        Args:
            seconds: The longest time to wait.
        """
        running = self.queue.futures
        self.queue.kill_running()
        deadline = time.monotonic() + seconds
        while running and time.monotonic() < deadline:
            ended = self.runner.wait(running, _WAIT_SECONDS)
            running = [future for future in running if future not in ended]

    def _run(self, shards: Sequence[Shard]) -> None:
        queue = self.queue
        queue.waiting = list(reversed(shards))
        next_tick = time.monotonic() + _TICK_SECONDS
        while queue.waiting or queue.running:
            if time.monotonic() >= next_tick:
                next_tick = time.monotonic() + _TICK_SECONDS
                self._tick()
            if self.cancelled() and self._end_cancelled():
                break
            if self._stopped:
                queue.waiting.clear()
            while self._may_submit():
                shard = queue.waiting.pop()
                future = self.runner.submit(shard)
                queue.running[future.task_run_id] = SubmittedShard(shard, future)
            self._wait()

    def _tick(self) -> None:
        slots = self.runner.slots()
        self.loss_policy.fail_lost_nodes(time.monotonic())
        self._stopped = (
            self._stopped
            or self.on_tick()
            or self.loss_policy.end_without_nodes(slots, time.monotonic())
        )
        if not self._stopped and slots is not None:
            self.queue.rebalance(min(slots, self.most or slots), time.monotonic())

    def _may_submit(self) -> bool:
        if not self.queue.waiting:
            return False
        # The count must be current: a submission to a cluster that just lost its head blocks.
        slots = self.runner.slots()
        if slots is None:
            return False
        return len(self.queue.running) < (self.most or max(1, slots) * _IN_FLIGHT_PER_SLOT)

    def _wait(self) -> None:
        """Wait briefly, and collect the shards that have ended."""
        if not self.queue.running:
            time.sleep(_WAIT_SECONDS)
            return
        for future in self.runner.wait(self.queue.futures, _WAIT_SECONDS):
            self._collect(self.queue.remove(future.task_run_id))

    def _collect(self, submitted: SubmittedShard) -> None:
        shard, future = submitted
        future.wait()  # Before this call, the state of the future is outdated.
        state = future.state
        reason = (state.message or "its process ended").strip().partition("\n")[0]
        reason = reason.removeprefix("Task run encountered an exception ")
        if not state.is_final():
            state = Crashed(message=reason)
        if self.cancelled():
            ended = state if state.is_completed() else Cancelled(message=reason)
            self.queue.record_end(submitted, ended)
        elif self.runner.leave_out(state):
            self.loss_policy.resubmit(submitted, state)
        elif state.is_crashed():
            self.loss_policy.handle_loss(submitted, reason)
        else:
            self.queue.record_end(submitted, state)
            if state.is_completed():
                self.loss_policy.in_turn = 0
            else:
                get_run_logger().error("%s ended early: %s", shard.title, reason)
                self.queue.ended_early.append(f"{shard.title} ended early: {reason}")

    def _end_cancelled(self) -> bool:
        """Kill the shards that have not ended in time.

        Ray waits for a node without a time limit, so the scheduler has its own limit.

        Returns:
            True if the scheduler should stop waiting.
        """
        now = time.monotonic()
        self._cancelled_since = self._cancelled_since or now
        seconds = now - self._cancelled_since
        if seconds > _GRACE_SECONDS and not self._killed:
            self._killed = True
            self.queue.kill_running()
        if seconds <= _GRACE_SECONDS + _KILL_REPORT_SECONDS:
            return False
        for submitted in self.queue.running.values():
            self.queue.record_end(submitted, Cancelled(message="its node does not respond"))
        return True
