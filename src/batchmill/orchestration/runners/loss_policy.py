"""The loss policy: what happens when a shard loses its process or its node.

A shard that loses its process is submitted again with its unfinished inputs. A shard that loses two
processes in a row and finishes no input in between is halved. The halving ends when one input is
alone in its shard. That input is recorded as crashed once its retries are used up.

A node that is lost says nothing about the inputs of its shards. It counts as one loss.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.states import Crashed

from batchmill.core.ledger.ledger import Ledger
from batchmill.core.storage import open_store
from batchmill.orchestration.runners.shard_queue import ShardQueue, SubmittedShard
from batchmill.runs.shards.shard import Shard, give_up, place_of, unfinished

# After this number of losses in turn, lost shards are not submitted again.
LOSSES_ALLOWED = 50
# Ray usually reports the shards of a lost node within this time.
_LOST_NODE_SECONDS = 5.0
# An autoscaler needs minutes to replace the nodes of a cluster.
_NO_NODE_SECONDS = 300.0
# Ray's reason begins with the name of its exception.
_NODE_IS_LOST = ("its node was lost", "NodeDiedError")
_NO_NODE = f"No node of the Ray cluster could run a shard for {_NO_NODE_SECONDS / 60:.0f} min."


@dataclass
class LossPolicy:
    """Counts the losses of one run and resubmits what the lost shards have not finished.

    Args:
        queue: The shards of the run.
        losses_allowed: After this many losses without a completed shard in between, no lost shard
            is submitted again.

    Attributes:
        losses: The number of lost processes and nodes.
        in_turn: The number of losses since the last shard has completed.
    """

    queue: ShardQueue
    losses_allowed: int
    losses: int = 0
    in_turn: int = 0
    _lost: set[str] = field(default_factory=set)
    _known_nodes: frozenset[str] = frozenset()
    _missing_since: dict[str, float] = field(default_factory=dict)
    _no_node_since: float | None = None

    def handle_loss(self, submitted: SubmittedShard, reason: str) -> None:
        """Record that a shard lost its process, and resubmit its unfinished inputs.

        Args:
            submitted: The lost shard, which is no longer among the running ones.
            reason: Why the process is gone, in one line.

        Raises:
            LedgerError: The ledger has a damaged part.
            StoreError: The dataset cannot be read or written.
        """
        shard = submitted.shard
        self.queue.record_end(submitted, Crashed(message=reason))
        logger = get_run_logger()
        logger.error("%s ended early: %s", shard.title, reason)
        if self.queue.runner.is_lost(reason):
            self._add_ended_early(self.queue.runner.lost_message)
            self.queue.waiting.clear()
            return
        is_node_lost = reason.startswith(_NODE_IS_LOST)
        # A lost node ends several shards, and counts once.
        lost = (is_node_lost and place_of(shard)) or shard.key
        if lost not in self._lost:
            self._lost.add(lost)
            self.losses, self.in_turn = self.losses + 1, self.in_turn + 1
        if self.in_turn > self.losses_allowed:
            self._add_ended_early(
                f"{shard.title} lost its process ({reason}). After {self.losses_allowed} losses "
                "without a completed shard, lost shards are not submitted again."
            )
            return
        for again in _moved(shard) if is_node_lost else _remaining(shard, reason):
            logger.info("submitted again: %s", again.title)
            self.queue.waiting.append(again)

    def resubmit(self, submitted: SubmittedShard, state: State[Any]) -> None:
        """Submit a shard that has not begun as a new task run. This is not counted as a loss.

        Args:
            submitted: The shard, which is no longer among the running ones.
            state: How its task run ended.
        """
        self.queue.record_end(submitted, state)
        shard = submitted.shard
        self.queue.waiting.append(replace(shard, attempt=shard.attempt + 1, left=shard.inputs))

    def fail_lost_nodes(self, now: float) -> None:
        """End the task runs of nodes that have been missing for too long.

        Ray waits for a silent node until the kernel closes the connection, which takes a quarter of
        an hour.

        Args:
            now: The time of a monotonic clock, in seconds.

        Raises:
            LedgerError: The ledger has a damaged part.
            StoreError: The dataset cannot be read or written.
        """
        for node in self._find_lost_nodes(now):
            for task_run, (shard, _) in list(self.queue.running.items()):
                begun_on = place_of(shard)
                if begun_on == node:
                    self.handle_loss(self.queue.remove(task_run), _NODE_IS_LOST[0])
                elif begun_on is None:
                    self._move(task_run)

    def end_without_nodes(self, slots: int | None, now: float) -> bool:
        """Kill all shards if there has been no node for a shard for too long.

        Args:
            slots: The number of shards that can run at a time. None if it is unknown.
            now: The time of a monotonic clock, in seconds.

        Returns:
            True if the run ends for this reason.
        """
        if slots != 0:
            self._no_node_since = None
            return False
        if self._no_node_since is None:
            self._no_node_since = now
            get_run_logger().warning(
                "no node of the Ray cluster can run a shard now. Waiting for a node."
            )
        runner = self.queue.runner
        longest = _NO_NODE_SECONDS if runner.is_elastic else _LOST_NODE_SECONDS
        if now - self._no_node_since < longest:
            return False
        no_node = f"{_NO_NODE} {runner.why_unfit}".strip()
        self._add_ended_early(no_node if runner.is_elastic else runner.lost_message)
        self.queue.kill_running()
        return True

    def _find_lost_nodes(self, now: float) -> list[str]:
        """Return the nodes that have been missing for too long. Each node is returned once."""
        missing = self._known_nodes - self.queue.runner.nodes
        self._known_nodes |= self.queue.runner.nodes
        for node in self.queue.runner.nodes:
            self._missing_since.pop(node, None)
        # A node that has just disappeared is left to Ray, which usually reports the reason.
        lost = [
            node
            for node in missing
            if now - self._missing_since.setdefault(node, now) >= _LOST_NODE_SECONDS
        ]
        self._known_nodes -= set(lost)
        return lost

    def _move(self, task_run: UUID) -> None:
        """Submit a shard that has not begun as a new task run.

        Ray may have requested a worker from the lost node, and would wait for the response.
        """
        submitted = self.queue.remove(task_run)
        self.queue.runner.kill(submitted.future)
        self.resubmit(submitted, Crashed(message="a node was lost before the shard began"))

    def _add_ended_early(self, reason: str) -> None:
        if reason not in self.queue.ended_early:
            self.queue.ended_early.append(reason)


def _moved(shard: Shard) -> list[Shard]:
    """Return the shard to submit again after its node was lost. No input caused that."""
    if shard.left == 1:
        Ledger(open_store(shard.dataset)).control.forget_attempts(shard.run, shard.key)
    (rows,) = unfinished([shard])
    return [replace(_next_attempt(shard, rows), losses=shard.losses)] if rows else []


def _remaining(shard: Shard, reason: str) -> list[Shard]:
    """Return the shards to submit again after a loss.

    Records the outcome `crashed` for an input that has used up its retries.
    """
    (rows,) = unfinished([shard])
    parts = split_lost(shard, rows)
    is_suspect = len(rows) == 1 and not _is_inconclusive(shard, rows)
    return [] if is_suspect and give_up(parts[0], reason) else parts


def split_lost(shard: Shard, rows: Sequence[int]) -> list[Shard]:
    """Return the next attempts at a shard that lost its process.

    Args:
        shard: The lost shard.
        rows: Its unfinished rows in the run's plan, in order.

    Returns:
        Nothing if no row is left, two halves if an input may have killed the process, else one
        shard with all rows.
    """
    if not rows:
        return []
    if len(rows) == 1 or _is_inconclusive(shard, rows):
        return [_next_attempt(shard, rows)]
    middle = len(rows) // 2
    return [_next_attempt(shard, rows[:middle]), _next_attempt(shard, rows[middle:])]


def _is_inconclusive(shard: Shard, rows: Sequence[int]) -> bool:
    """Return whether there is no evidence yet that an input kills the process.

    A first loss can have any cause. A shard that finished inputs makes progress.
    """
    return shard.losses == 0 or len(rows) < shard.inputs


def _next_attempt(shard: Shard, rows: Sequence[int]) -> Shard:
    return replace(
        shard,
        start=rows[0],
        stop=rows[-1] + 1,
        attempt=shard.attempt + 1,
        losses=shard.losses + 1,
        left=len(rows),
        given=-1,
    )
