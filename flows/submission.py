"""Submits shards to Ray as Prefect task runs, a bounded number at a time, and waits for them.

A shard whose Ray worker is gone is submitted again, with what it had not finished; one that loses
its worker twice without getting further is divided, until the input that is to blame is alone.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from batchmill.flows.api import TaskRunEnd
from batchmill.tasks.shard import run_shard
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.states import Crashed
from prefect_ray import RayTaskRunner
from prefect_ray.task_runners import PrefectRayFuture

from batchmill.shard import Shard, give_up, unfinished

_LOOK_SECONDS = 1.0
# So long a signal has to wait: Ray waits outside of Python, where no handler is called.
_WAIT_SECONDS = 0.2
# A shard that is asked to end looks every two seconds, and gives the inputs at hand three.
_GRACE_SECONDS = 6.0
# Ray's name for the end of the raylet that the driver itself is connected to.
_LOCAL_RAY_IS_GONE = "LocalRayletDiedError"
_GONE = "Ray on the machine of the flow run has died, so nothing more could be submitted."


@dataclass(kw_only=True)
class Submission:
    """The shards of one run on their way through Ray.

    At most `in_flight` are submitted at once. `look` is called about every second; once it returns
    true, no more are submitted. Once the run is `cancelled`, what does not end soon is killed.
    After `losses_allowed` lost workers, none is submitted again. `ended_early` says why some shards
    have no outcome for all their inputs; `ends` how each task run ended.
    """

    runner: RayTaskRunner[Any]
    in_flight: int
    look: Callable[[], bool]
    cancelled: Callable[[], bool]
    losses_allowed: int
    ended_early: list[str] = field(default_factory=list)
    losses: int = 0
    ends: list[TaskRunEnd] = field(default_factory=list)
    _waiting: list[Shard] = field(default_factory=list)

    def run(self, shards: Sequence[Shard]) -> None:
        """Run shards until each has ended, or no more are to be submitted."""
        self._waiting = list(reversed(shards))
        running: dict[Any, tuple[Shard, PrefectRayFuture[Any]]] = {}
        patience, next_look = float("inf"), 0.0
        while self._waiting or running:
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + _LOOK_SECONDS
                if self.look():
                    self._waiting.clear()
            if self.cancelled() and patience == float("inf"):
                patience = time.monotonic() + _GRACE_SECONDS
            if time.monotonic() > patience:
                for reference in running:
                    ray.cancel(reference, force=True)
                patience, next_look = float("inf"), 0.0
            while self._waiting and len(running) < self.in_flight:
                shard = self._waiting.pop()
                future = self.runner.submit(run_shard, {"shard": shard})
                running[future.wrapped_future] = (shard, future)
            if not running:
                break
            ended, _ = ray.wait(list(running), num_returns=1, timeout=_WAIT_SECONDS)
            for reference in ended:
                self._settle(*running.pop(reference))

    def _settle(self, shard: Shard, future: PrefectRayFuture[Any]) -> None:
        future.wait()  # Else its state is what it was before.
        state = future.state
        reason = (state.message or "its process is gone").strip().partition("\n")[0]
        if not state.is_final():
            state = Crashed(message=reason)
        plain: State[Any] = State(type=state.type, name=state.name, message=state.message)
        self.ends.append(TaskRunEnd(future.task_run_id, shard.title, plain))
        if state.is_completed() or self.cancelled():
            return
        logger = get_run_logger()
        logger.error("%s ended early: %s", shard.title, reason)
        if not state.is_crashed():
            self.ended_early.append(f"{shard.title} ended early: {reason}")
            return
        if _LOCAL_RAY_IS_GONE in reason:
            if _GONE not in self.ended_early:
                self.ended_early.append(_GONE)
            self._waiting.clear()
            return
        self.losses += 1
        if self.losses > self.losses_allowed:
            self.ended_early.append(
                f"{shard.title} lost its Ray worker, the {self.losses}. of this run: {reason}"
            )
            return
        for again in self._what_is_left(shard):
            logger.info("submitted again: %s", again.title)
            self._waiting.append(again)

    def _what_is_left(self, shard: Shard) -> list[Shard]:
        rows = unfinished(shard)
        if not rows:
            return []
        if shard.attempt == 1 or len(rows) < shard.inputs:
            return [_again(shard, rows)]  # Nothing tells yet that an input is to blame.
        if len(rows) > 1:
            middle = len(rows) // 2
            return [_again(shard, rows[:middle]), _again(shard, rows[middle:])]
        alone = _again(shard, rows)
        name = give_up(alone)
        if name is None:
            return [alone]
        get_run_logger().error("%s: crashed: it takes its Ray worker with it", name)
        return []


def _again(shard: Shard, rows: Sequence[int]) -> Shard:
    return replace(
        shard, start=rows[0], stop=rows[-1] + 1, attempt=shard.attempt + 1, left=len(rows)
    )
