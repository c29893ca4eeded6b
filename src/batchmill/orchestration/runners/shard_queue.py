"""The shards of one run: waiting shards, running shards, and ended task runs.

Inputs of a slow shard are moved to idle nodes, before the slow shard begins them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple
from uuid import UUID

from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger

from batchmill.orchestration.runners.shard_runner import ShardFuture, ShardRunner
from batchmill.orchestration.server.api import TaskRunEnd
from batchmill.runs.shards.shard import Shard, ask_to_split, split, unfinished

# Nodes are idle this long before a running shard is split.
_IDLE_SECONDS = 5.0
_NEVER = float("inf")


class SubmittedShard(NamedTuple):
    """A shard and the future of the task run that executes it."""

    shard: Shard
    future: ShardFuture


@dataclass(kw_only=True)
class ShardQueue:
    """The shards of one run. The scheduler and the loss policy share it.

    It splits the largest running shard when nodes are idle at the end of a run. At most one split
    is in progress, and each task run is split at most once.

    Args:
        runner: Runs the shards.
        workers: A shard with at most this many unfinished inputs is not split, because each of its
            workers may have begun one.

    Attributes:
        waiting: Shards that have not been submitted. The last one is submitted next.
        running: Submitted shards by the id of their task run.
        ends: How each task run ended. The first entry ended first.
        ended_early: Why some inputs of the run have no outcome.
    """

    runner: ShardRunner
    workers: int
    waiting: list[Shard] = field(default_factory=list)
    running: dict[UUID, SubmittedShard] = field(default_factory=dict)
    ends: list[TaskRunEnd] = field(default_factory=list)
    ended_early: list[str] = field(default_factory=list)
    # The task run whose split was requested, until its shard responds.
    _requested: UUID | None = None
    _already_split: set[UUID] = field(default_factory=set)
    _next_split: float = _NEVER

    @property
    def futures(self) -> list[ShardFuture]:
        """The futures of the running task runs."""
        return [submitted.future for submitted in self.running.values()]

    def kill_running(self) -> None:
        """Kill the running shards. Their task runs end soon after."""
        for future in self.futures:
            self.runner.kill(future)

    def record_end(self, submitted: SubmittedShard, state: State[Any]) -> None:
        """Record how a task run ended.

        Args:
            submitted: The shard and the future of its task run.
            state: The final state. Only its type, name and message are kept.
        """
        plain: State[Any] = State(type=state.type, name=state.name, message=state.message)
        self.ends.append(TaskRunEnd(submitted.future.task_run_id, submitted.shard.title, plain))

    def rebalance(self, slots: int, now: float) -> None:
        """Request a split if nodes are idle, or collect the inputs of a requested one.

        Args:
            slots: The number of shards that can run at a time.
            now: The time of a monotonic clock, in seconds.

        Raises:
            LedgerError: The ledger has a damaged part.
            StoreError: The dataset cannot be read or written.
        """
        if self._requested is not None:
            self._collect(self._requested)
        elif self.waiting or not 0 < len(self.running) < slots:
            self._next_split = _NEVER
        elif self._next_split == _NEVER:
            # The running shards may end before the nodes have been idle for long.
            self._next_split = now + _IDLE_SECONDS
        elif now >= self._next_split:
            self._next_split = now + _IDLE_SECONDS
            self._request_split()

    def remove(self, task_run: UUID) -> SubmittedShard:
        """Remove an ended task run from the running ones.

        Args:
            task_run: The id of the task run.

        Returns:
            The shard without the inputs that were split off.

        Raises:
            StoreError: The dataset cannot be read.
        """
        if task_run == self._requested:
            self._collect(task_run)
            # A shard that has ended does not respond. Its other inputs are done or lost.
            self._requested = None
        return self.running.pop(task_run)

    def _request_split(self) -> None:
        candidates = [key for key in self.running if key not in self._already_split]
        if not candidates:
            return
        rows = unfinished([self.running[task_run].shard for task_run in candidates])
        most, task_run = max(zip(map(len, rows), candidates, strict=True), key=itemgetter(0))
        if most > self.workers:
            ask_to_split(self.running[task_run].shard)
            self._requested = task_run
            self._already_split.add(task_run)

    def _collect(self, task_run: UUID) -> None:
        """Add the split-off inputs to the waiting shards, if the split shard has responded."""
        shard, future = self.running[task_run]
        answer = split(shard)
        if answer is None:
            return
        kept, rest = answer
        self.running[task_run] = SubmittedShard(kept, future)
        self._requested = None
        if rest is None:
            return
        idle = max(1, (self.runner.slots() or 0) - len(self.running))
        get_run_logger().info(
            "%s: %d inputs are split off for idle nodes", shard.title, rest.inputs
        )
        # The extra part is for the node that finishes its shard next.
        self.waiting += divide(rest, min(rest.inputs, idle + 1))


def divide(shard: Shard, parts: int) -> Sequence[Shard]:
    """Divide a shard into parts of nearly equal size.

    Args:
        shard: The shard to divide. It has no attempt yet.
        parts: The number of parts, at most the number of inputs.

    Returns:
        Shards with consecutive rows of the run's plan, in order.
    """
    bounds = [shard.start + shard.inputs * part // parts for part in range(parts + 1)]
    return [replace(shard, start=start, stop=stop) for start, stop in pairwise(bounds)]
