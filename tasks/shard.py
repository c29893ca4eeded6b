"""The tasks that run one shard: in a process of this machine, or on a Ray worker."""

import threading
from collections.abc import Sequence
from typing import Any, cast
from uuid import UUID

from batchmill.tasks.shard_log import ShardLog, send_logs
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.runtime import task_run
from prefect.states import Cancelled, Crashed

from batchmill.outcome import Outcome
from batchmill.runs.node_check import Probe, first_fault
from batchmill.security.credentials import Access, access_to
from batchmill.shards.process import ShardProcess, ShardProcessDiedError
from batchmill.shards.process_pool import ShardProcesses
from batchmill.shards.run_shard import ShardResult, run_shard
from batchmill.shards.shard import Shard

_UNFIT = "UnfitNode"


class RunningShards:
    """The processes that run shards, by task run. Each uses one of `gpus`, if any."""

    def __init__(self, processes: ShardProcesses, gpus: Sequence[str] = ()) -> None:
        self.processes = processes
        self._gpus = gpus
        self._by_task: dict[UUID, ShardProcess] = {}
        self._killed: set[UUID] = set()
        self._lock = threading.Lock()

    def run(self, own: UUID, shard: Shard, access: Sequence[Access], log: ShardLog) -> ShardResult:
        """Run a shard for a task run. Raises ShardProcessDiedError if it dies or is killed."""
        with self.processes.one(self._gpus) as process:
            with self._lock:
                if own in self._killed:
                    raise ShardProcessDiedError("the shard was killed before it started")
                self._by_task[own] = process
            try:
                return process.run(
                    shard, access, lambda failure: log.failure(*failure), log.step_lines
                )
            finally:
                with self._lock:
                    del self._by_task[own]

    def kill(self, own: UUID) -> None:
        """Kill the process of a task run. A task run without a process will not start one."""
        with self._lock:
            self._killed.add(own)
            process = self._by_task.get(own)
            if process:
                process.kill()

    def was_killed(self, own: UUID) -> bool:
        """Return whether `kill` was called for a task run."""
        return own in self._killed


# Prefect must not retry a shard: the run retries the inputs that are not in the ledger.
@task(name="run_shard", task_run_name="{shard.title}", retries=0, cache_policy=NO_CACHE)
def run_local_shard(shard: Shard, access: Sequence[Access], running: RunningShards) -> State[Any]:
    """Execute and commit the inputs of one shard, and log the inputs that are not ok.

    The state names the number of failed inputs. It is Crashed if the process of the shard died, and
    Cancelled if it was killed.
    """
    log = ShardLog()
    own = UUID(task_run.get_id())
    try:
        result = running.run(own, shard, access, log)
    except ShardProcessDiedError as error:
        if running.was_killed(own):
            return Cancelled(message="the shard's process was killed")
        return Crashed(message=str(error))
    return log.end(result)


# Ray and Prefect must not retry a shard: the run retries the inputs that are not in the ledger.
@task(name="run_shard", task_run_name="{shard.title}", retries=0, cache_policy=NO_CACHE)
def run_ray_shard(
    shard: Shard, access: Sequence[Access] = (), probe: Probe | None = None
) -> State[Any]:
    """Execute and commit the inputs of one shard, and log the inputs that are not ok.

    The state names the number of failed inputs. It is Crashed if this node cannot run the shard.
    Then no input has begun.
    """
    import ray

    log = ShardLog()
    context = ray.get_runtime_context()

    def report(outcome: Outcome) -> None:
        if outcome.kind != "ok":
            log.failure(outcome.input, outcome.kind, outcome.reason)

    try:
        with access_to(access):
            fault = first_fault(probe) if probe else ""
            if fault:
                where = cast("Any", ray).util.get_node_ip_address()
                reason = f"{context.get_node_id()} on {where}: {fault}"
                return Crashed(name=_UNFIT, message=reason)
            place = context.get_node_id()
            result = run_shard(shard, report, place=place, on_lines=log.step_lines)
        return log.end(result)
    finally:
        # Ray ends its workers immediately after the last shard, and unsent logs would be lost.
        send_logs()


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
