"""Moves inputs from a slow shard to idle nodes, before the slow shard begins them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import itemgetter
from uuid import UUID

from prefect.logging import get_run_logger

from batchmill.orchestration.runners.runner import ShardRunner
from batchmill.orchestration.runners.shard_queue import ShardQueue, SubmittedShard
from batchmill.shards.shard import Shard, ask_to_split, split, unfinished

# Nodes are idle this long before a running shard is split.
_IDLE_SECONDS = 5.0
_NEVER = float("inf")


@dataclass
class Rebalancer:
    """Splits the largest running shard when nodes are idle at the end of a run.

    At most one split is in progress, and each task run is split at most once.

    Args:
        runner: Runs the shards.
        queue: The shards of the run. Split-off inputs become waiting shards.
        workers: A shard with at most this many unfinished inputs is not split, because each of its
            workers may have begun one.
    """

    runner: ShardRunner
    queue: ShardQueue
    workers: int
    # The task run whose split was requested, until its shard responds.
    _requested: UUID | None = None
    _already_split: set[UUID] = field(default_factory=set)
    _next_split: float = _NEVER

    def rebalance(self, slots: int, now: float) -> None:
        """Request a split if nodes are idle, or collect the inputs of a requested one.

        Args:
            slots: The number of shards that can run at a time.
            now: The time of a monotonic clock, in seconds.

        Raises:
            LedgerError: The ledger has a damaged part.
            StoreError: The dataset cannot be read or written.
        """
        running = self.queue.running
        if self._requested is not None:
            self._collect(self._requested)
        elif self.queue.waiting or not 0 < len(running) < slots:
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
        return self.queue.running.pop(task_run)

    def _request_split(self) -> None:
        candidates = [key for key in self.queue.running if key not in self._already_split]
        if not candidates:
            return
        rows = unfinished([self.queue.running[task_run].shard for task_run in candidates])
        most, task_run = max(zip(map(len, rows), candidates, strict=True), key=itemgetter(0))
        if most > self.workers:
            ask_to_split(self.queue.running[task_run].shard)
            self._requested = task_run
            self._already_split.add(task_run)

    def _collect(self, task_run: UUID) -> None:
        """Add the split-off inputs to the waiting shards, if the split shard has responded."""
        shard, future = self.queue.running[task_run]
        answer = split(shard)
        if answer is None:
            return
        kept, rest = answer
        self.queue.running[task_run] = SubmittedShard(kept, future)
        self._requested = None
        if rest is None:
            return
        idle = max(1, (self.runner.slots() or 0) - len(self.queue.running))
        get_run_logger().info(
            "%s: %d inputs are split off for idle nodes", shard.title, rest.inputs
        )
        # The extra part is for the node that finishes its shard next.
        self.queue.waiting += divide(rest, min(rest.inputs, idle + 1))


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
