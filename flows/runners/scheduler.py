"""Gives shards to a runner as Prefect task runs, a bounded number at a time, and waits for them.

A shard whose process dies is submitted again with the inputs that it had not finished. A shard that
dies twice without finishing any is divided, until the input that kills it is alone. A running shard
gives inputs that it has not begun to nodes that would stand idle.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import itemgetter
from typing import Any
from uuid import UUID

from batchmill.flows.runners.runner import ShardFuture, ShardRunner
from batchmill.flows.services.api import TaskRunEnd
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.states import Cancelled, Crashed

from batchmill.execution.shard import Shard, ask_to_split, give_up, place_of, split, unfinished

_LOOK_SECONDS = 1.0
# The longest that a signal waits: Ray waits outside of Python, where no handler is called.
_WAIT_SECONDS = 0.2
# A shard that is asked to end looks every two seconds, and gives the inputs at hand three.
_GRACE_SECONDS = 6.0
# A killed task run has this long to report its end.
_LAST_WORD_SECONDS = 2.0
# Nodes stand idle this long before a running shard is asked to share.
_IDLE_SECONDS = 5.0
# Ray reports the shards of a lost node within this time, if it reports them at all.
_LOST_NODE_SECONDS = 5.0
# Shards wait in the runner's queue only so that a free slot need not wait for a submission.
_IN_FLIGHT_PER_SLOT = 2
_DESERTED_SECONDS = 300.0
_DESERTED = f"No node of the Ray cluster could run a shard for {_DESERTED_SECONDS / 60:.0f} min."


@dataclass(kw_only=True)
class ShardScheduler:
    """The shards of one run on their way through a runner.

    `look` is called about every second; once it returns true, no more are submitted. Once the run
    is `cancelled`, what does not end soon is killed. After `losses_allowed` lost processes, no
    shard is submitted again. A shard with more than `workers` inputs left is split when nodes would
    stand idle. `ended_early` says why some shards have no outcome for all their inputs; `ends` how
    each task run ended.
    """

    runner: ShardRunner
    workers: int
    look: Callable[[], bool]
    cancelled: Callable[[], bool]
    losses_allowed: int
    ended_early: list[str] = field(default_factory=list)
    losses: int = 0
    ends: list[TaskRunEnd] = field(default_factory=list)
    _waiting: list[Shard] = field(default_factory=list)
    _running: dict[UUID, tuple[Shard, ShardFuture]] = field(default_factory=dict)
    # The shard that was asked to leave what it has not begun, and when to ask one next.
    _asked: UUID | None = None
    _has_shared: set[UUID] = field(default_factory=set)
    _next_split: float = float("inf")
    # The nodes that there have been, and when each lost one was missed.
    _known: frozenset[str] = frozenset()
    _missed: dict[str, float] = field(default_factory=dict)
    _no_node_since: float | None = None
    _cancelled_since: float | None = None
    _killed: bool = False
    _stopped: bool = False

    def run(self, shards: Sequence[Shard]) -> None:
        """Run shards until each has ended, or no more are to be submitted."""
        try:
            self._run(shards)
        except BaseException as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            for shard, future in self._running.values():
                self._record_end(shard, future, Crashed(message=reason))
            raise

    def _run(self, shards: Sequence[Shard]) -> None:
        self._waiting = list(reversed(shards))
        running = self._running
        next_look = 0.0
        while self._waiting or running:
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + _LOOK_SECONDS
                slots = self.runner.slots()
                self._fail_lost_nodes()
                self._stopped = self._stopped or self.look() or self._is_deserted(slots)
                if not self._stopped and slots is not None:
                    self._share_out(slots)
            if self.cancelled() and self._end_soon():
                break
            if self._stopped:
                self._waiting.clear()
            while self._may_submit():
                shard = self._waiting.pop()
                future = self.runner.submit(shard)
                running[future.task_run_id] = (shard, future)
            if not running and not self._waiting:
                break
            self._wait()

    def _end_soon(self) -> bool:
        """Kill what has not ended a while after the run was cancelled; return whether that is all.

        A node that is silent does not answer to that either, and Ray would wait for it.
        """
        now = time.monotonic()
        self._cancelled_since = self._cancelled_since or now
        seconds = now - self._cancelled_since
        if seconds > _GRACE_SECONDS and not self._killed:
            self._killed = True
            self._kill_all()
        if seconds <= _GRACE_SECONDS + _LAST_WORD_SECONDS:
            return False
        for shard, future in self._running.values():
            self._record_end(shard, future, Cancelled(message="its node does not answer"))
        return True

    def _may_submit(self) -> bool:
        if not self._waiting:
            return False
        # Now: to submit to a cluster that has just lost its head takes ever.
        slots = self.runner.slots()
        return slots is not None and len(self._running) < max(1, slots) * _IN_FLIGHT_PER_SLOT

    def _wait(self) -> None:
        """Wait a little for shards to end, and settle those that have."""
        if not self._running:
            time.sleep(_WAIT_SECONDS)
            return
        futures = [future for _, future in self._running.values()]
        for future in self.runner.wait(futures, _WAIT_SECONDS):
            self._resolve(*self._remove(future.task_run_id))

    def _remove(self, task_run: UUID) -> tuple[Shard, ShardFuture]:
        """Return a shard that no longer runs, without the inputs that it has left to others."""
        if task_run == self._asked:
            self._take_rest()
            self._asked = None  # Inputs that it has not left are done, or lost.
        return self._running.pop(task_run)

    def _fail_lost_nodes(self) -> None:
        """Count shards as lost whose node is no more.

        Of one that fell silent, Ray waits for the answer until the kernel gives the connection up,
        which takes a quarter of an hour.
        """
        now = time.monotonic()
        gone = self._known - self.runner.nodes
        self._known |= self.runner.nodes
        for node in gone:
            since = self._missed.setdefault(node, now)
            if now - since < _LOST_NODE_SECONDS:
                continue  # As a rule, Ray itself has a reason to tell.
            self._known -= {node}
            for task_run, (shard, _) in list(self._running.items()):
                place = place_of(shard)
                if place == node:
                    self._lose(*self._remove(task_run), "its node is gone")
                elif place is None:
                    self._submit_elsewhere(task_run)

    def _submit_elsewhere(self, task_run: UUID) -> None:
        """Submit a shard that has not begun as a new task run.

        Ray may have asked the node that is gone for a worker, and wait for its answer as well.
        """
        shard, future = self._remove(task_run)
        self.runner.kill(future)
        self._record_end(shard, future, Crashed(message="a node is gone, before it began"))
        self._waiting.append(replace(shard, attempt=shard.attempt + 1, left=shard.inputs))

    def _share_out(self, slots: int) -> None:
        """Have a shard leave inputs to nodes that would stand idle at the end of a run."""
        now = time.monotonic()
        if self._asked is not None:
            self._take_rest()
        elif self._waiting or not 0 < len(self._running) < slots:
            self._next_split = float("inf")
        elif self._next_split == float("inf"):
            self._next_split = now + _IDLE_SECONDS  # It may be over in a moment.
        elif now >= self._next_split:
            self._next_split = now + _IDLE_SECONDS
            task_runs = [key for key in self._running if key not in self._has_shared]
            if not task_runs:
                return
            rows = unfinished([self._running[task_run][0] for task_run in task_runs])
            most, task_run = max(zip(map(len, rows), task_runs, strict=True), key=itemgetter(0))
            if most > self.workers:
                ask_to_split(self._running[task_run][0])
                self._asked = task_run
                self._has_shared.add(task_run)  # It can do so once.

    def _take_rest(self) -> None:
        """Take what the shard that was asked has left, if it has said what that is."""
        asked = self._asked
        if asked is None:
            return
        shard, future = self._running[asked]
        answer = split(shard)
        if answer is None:
            return
        kept, rest = answer
        self._running[asked] = (kept, future)
        self._asked = None
        if rest is None:
            return
        idle = max(1, (self.runner.slots() or 0) - len(self._running))
        # One part more, for the node that is about to end what it is at.
        parts = min(rest.inputs, idle + 1)
        bounds = [rest.start + rest.inputs * part // parts for part in range(parts + 1)]
        get_run_logger().info("%s leaves %d inputs to others", shard.title, rest.inputs)
        self._waiting += [replace(rest, start=start, stop=stop) for start, stop in pairwise(bounds)]

    def _is_deserted(self, slots: int | None) -> bool:
        """Whether no node has been able to run a shard for long; says so."""
        if slots != 0:
            self._no_node_since = None
            return False
        now = time.monotonic()
        if self._no_node_since is None:
            self._no_node_since = now
            get_run_logger().warning("no node of the Ray cluster can run a shard now; waiting")
        seconds = _DESERTED_SECONDS if self.runner.is_elastic else _LOST_NODE_SECONDS
        if now - self._no_node_since < seconds:
            return False
        why = _DESERTED if self.runner.is_elastic else self.runner.lost_message
        if why not in self.ended_early:
            self.ended_early.append(why)
        self._kill_all()
        return True

    def _kill_all(self) -> None:
        for _, future in self._running.values():
            self.runner.kill(future)

    def _resolve(self, shard: Shard, future: ShardFuture) -> None:
        future.wait()  # Else its state is what it was before.
        state = future.state
        reason = (state.message or "its process is gone").strip().partition("\n")[0]
        if not state.is_final():
            state = Crashed(message=reason)
        if self.cancelled():
            ended = state if state.is_completed() else Cancelled(message=reason)
            self._record_end(shard, future, ended)
            return
        if state.is_crashed():
            self._lose(shard, future, reason)
            return
        self._record_end(shard, future, state)
        if not state.is_completed():
            get_run_logger().error("%s ended early: %s", shard.title, reason)
            self.ended_early.append(f"{shard.title} ended early: {reason}")

    def _lose(self, shard: Shard, future: ShardFuture, reason: str) -> None:
        """Record that a shard's process is gone, and submit what is left of the shard."""
        self._record_end(shard, future, Crashed(message=reason))
        logger = get_run_logger()
        logger.error("%s ended early: %s", shard.title, reason)
        if self.runner.is_lost(reason):
            if self.runner.lost_message not in self.ended_early:
                self.ended_early.append(self.runner.lost_message)
            self._waiting.clear()
            return
        self.losses += 1
        if self.losses > self.losses_allowed:
            self.ended_early.append(
                f"{shard.title} lost its process; {self.losses} were lost in this run: {reason}"
            )
            return
        for again in self._what_is_left(shard, reason):
            logger.info("submitted again: %s", again.title)
            self._waiting.append(again)

    def _record_end(self, shard: Shard, future: ShardFuture, state: State[Any]) -> None:
        plain: State[Any] = State(type=state.type, name=state.name, message=state.message)
        self.ends.append(TaskRunEnd(future.task_run_id, shard.title, plain))

    def _what_is_left(self, shard: Shard, reason: str) -> list[Shard]:
        (rows,) = unfinished([shard])
        if not rows:
            return []
        if shard.attempt == 1 or len(rows) < shard.inputs:
            return [_again(shard, rows)]  # Nothing tells yet that an input is to blame.
        if len(rows) > 1:
            middle = len(rows) // 2
            return [_again(shard, rows[:middle]), _again(shard, rows[middle:])]
        alone = _again(shard, rows)
        name = give_up(alone, reason)
        if name is None:
            return [alone]
        get_run_logger().error("%s: crashed: it ends the process of its shard", name)
        return []


def _again(shard: Shard, rows: Sequence[int]) -> Shard:
    return replace(
        shard,
        start=rows[0],
        stop=rows[-1] + 1,
        attempt=shard.attempt + 1,
        left=len(rows),
        given=-1,
    )
