"""The tasks that run one shard, in a process of this machine or on a Ray worker, and their log."""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast
from uuid import UUID

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.events.worker import EventsWorker
from prefect.logging import get_run_logger
from prefect.logging.handlers import APILogWorker
from prefect.runtime import task_run
from prefect.states import Cancelled, Completed, Crashed

from batchmill.core.security.credentials import Access, access_to
from batchmill.runs.node_check import Probe, first_fault
from batchmill.runs.shards.process import ShardProcess, ShardProcessDiedError
from batchmill.runs.shards.process_pool import ShardProcesses
from batchmill.runs.shards.run_shard import ShardResult, run_shard
from batchmill.runs.shards.shard import Shard
from batchmill.runs.shards.step_log import StepLines

_UNFIT = "UnfitNode"
# The longest time to send logs or events.
_DRAIN_SECONDS = 5


def _log_lines(logger: Any, step_lines: StepLines) -> None:
    """Log the lines that a step printed or logged, each after the name of its input."""
    prefix = f"{step_lines.input}: " if step_lines.input else ""
    for line in step_lines.lines:
        known = logging.getLevelNamesMapping().get(line.partition(":")[0], logging.INFO)
        # By default, Prefect drops records below INFO, also those that the user requested.
        logger.log(max(known, logging.INFO), "%s%s", prefix, line)


def _completed(result: ShardResult) -> State[ShardResult]:
    """Log the number of inputs by outcome. Return the final state, which counts the failures."""
    counts = ", ".join(f"{count} {kind}" for kind, count in result.outcomes.items())
    get_run_logger().info("%s in %.1f s", counts, result.seconds)
    inputs = sum(result.outcomes.values())
    failed = inputs - result.outcomes.get("ok", 0)
    what = f"{failed:,} of {inputs:,} inputs failed" if failed else f"{inputs:,} inputs are ok"
    return Completed(message=f"{what}.", data=result)


class RunningShards:
    """The processes that run shards, by task run. Each uses one of `gpus`, if any.

    `killed` has the task runs for which `kill` was called.
    """

    def __init__(self, processes: ShardProcesses, gpus: Sequence[str] = ()) -> None:
        self.processes = processes
        self._gpus = gpus
        self._by_task: dict[UUID, ShardProcess] = {}
        self.killed: set[UUID] = set()
        self._lock = threading.Lock()

    def run(
        self,
        own: UUID,
        shard: Shard,
        access: Sequence[Access],
        on_lines: Callable[[StepLines], None],
    ) -> ShardResult:
        """Run a shard for a task run. Raises ShardProcessDiedError if it dies or is killed."""
        with self.processes.one(self._gpus) as process:
            with self._lock:
                if own in self.killed:
                    raise ShardProcessDiedError("the shard was killed before it started")
                self._by_task[own] = process
            try:
                return process.run(shard, access, on_lines)
            finally:
                with self._lock:
                    del self._by_task[own]

    def kill(self, own: UUID) -> None:
        """Kill the process of a task run. A task run without a process will not start one."""
        with self._lock:
            self.killed.add(own)
            process = self._by_task.get(own)
            if process:
                process.kill()


# Prefect must not retry a shard: the run retries the inputs that are not in the ledger.
@task(name="run_shard", task_run_name="{shard.title}", retries=0, cache_policy=NO_CACHE)
def run_local_shard(shard: Shard, access: Sequence[Access], running: RunningShards) -> State[Any]:
    """Execute and commit the inputs of one shard.

    The state names the number of failed inputs. It is Crashed if the process of the shard died, and
    Cancelled if it was killed.
    """
    task_run_id = UUID(task_run.get_id())
    try:
        result = running.run(task_run_id, shard, access, partial(_log_lines, get_run_logger()))
    except ShardProcessDiedError as error:
        if task_run_id in running.killed:
            return Cancelled(message="the shard's process was killed")
        return Crashed(message=str(error))
    return _completed(result)


# Ray and Prefect must not retry a shard: the run retries the inputs that are not in the ledger.
@task(name="run_shard", task_run_name="{shard.title}", retries=0, cache_policy=NO_CACHE)
def run_ray_shard(
    shard: Shard, access: Sequence[Access] = (), probe: Probe | None = None
) -> State[Any]:
    """Execute and commit the inputs of one shard.

    The state names the number of failed inputs. It is Crashed if this node cannot run the shard.
    Then no input has begun.
    """
    import ray

    log_lines = partial(_log_lines, get_run_logger())
    node = ray.get_runtime_context().get_node_id()
    try:
        with access_to(access):
            fault = first_fault(probe) if probe else ""
            if fault:
                where = cast("Any", ray).util.get_node_ip_address()
                return Crashed(name=_UNFIT, message=f"{node} on {where}: {fault}")
            result = run_shard(shard, place=node, on_lines=log_lines)
        return _completed(result)
    finally:
        # Ray ends its workers immediately after the last shard, and unsent logs would be lost.
        send(APILogWorker)


def refusing_node(state: State[Any]) -> tuple[str, str]:
    """Return the id of a node that could not run a shard, and the reason.

    Args:
        state: The final state of a task run.

    Returns:
        Two empty texts if the task run ended in another way.
    """
    if state.name != _UNFIT:
        return "", ""
    node, _, reason = str(state.message).partition(" ")
    return node, reason


def send(worker: type[APILogWorker | EventsWorker]) -> None:
    """Send the logs or the events of this process to the Prefect API immediately.

    Args:
        worker: The worker that sends them. Events are for example the ends of task runs.
    """
    # If an event loop runs, as in a notebook, `drain_all` only returns a coroutine. No loop runs
    # in a new thread.
    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(worker.drain_all, timeout=_DRAIN_SECONDS, at_exit=False).result()
