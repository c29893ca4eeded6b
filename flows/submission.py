"""Submits shards to Ray as Prefect task runs, a bounded number at a time, and waits for them."""

from collections.abc import Callable, Sequence
from typing import Any

import ray
from batchmill.flows.api import mark_crashed
from batchmill.tasks.shard import run_shard
from prefect.logging import get_run_logger
from prefect_ray import RayTaskRunner
from prefect_ray.task_runners import PrefectRayFuture

from batchmill.shard import Shard

_LOOK_SECONDS = 2.0


def submit_shards(
    runner: RayTaskRunner[Any], shards: Sequence[Shard], in_flight: int, look: Callable[[], bool]
) -> list[str]:
    """Run shards, at most `in_flight` submitted at once; return why some ended early.

    `look` is called every few seconds; once it returns true, no more are submitted.
    """
    waiting = list(reversed(shards))
    running: dict[Any, tuple[Shard, PrefectRayFuture[Any]]] = {}
    lost: list[str] = []
    while waiting or running:
        if look():
            waiting.clear()
        while waiting and len(running) < in_flight:
            shard = waiting.pop()
            future = runner.submit(run_shard, {"shard": shard})
            running[future.wrapped_future] = (shard, future)
        if not running:
            break
        ended, _ = ray.wait(list(running), num_returns=1, timeout=_LOOK_SECONDS)
        for reference in ended:
            shard, future = running.pop(reference)
            future.wait()  # Else its state is what it was before.
            state = future.state
            if not state.is_completed():
                lost.append(f"shard {shard.number}/{shard.total} ended early: {state.message}")
                get_run_logger().error(lost[-1])
            if state.is_crashed():
                mark_crashed(future.task_run_id, state.message or "its process is gone")
    return lost
