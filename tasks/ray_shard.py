"""The task that runs one shard on a Ray worker."""

from collections.abc import Sequence
from typing import Any, cast

from batchmill.tasks.shard_log import ShardLog, send_logs
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Crashed

from batchmill.outcome import Outcome
from batchmill.runs.node_check import Probe, first_fault
from batchmill.security.credentials import Access, access_to
from batchmill.shards.run_shard import run_shard as run
from batchmill.shards.shard import Shard

_UNFIT = "UnfitNode"


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
            result = run(shard, report, place=place, on_lines=log.step_lines)
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
