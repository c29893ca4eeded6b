"""The task that runs one shard on a Ray worker."""

from collections.abc import Sequence

from batchmill.tasks.logs import send_logs
from batchmill.tasks.shard_log import ShardLog
from prefect import task
from prefect.cache_policies import NO_CACHE

from batchmill.execution.run_shard import ShardResult
from batchmill.execution.run_shard import run_shard as run
from batchmill.execution.shard import Shard
from batchmill.outcome import Outcome
from batchmill.storage.access import Access, access_to


# Ray and Prefect must not retry a shard: the run retries the inputs that are not in the ledger.
@task(name="run_shard", task_run_name="{shard.title}", retries=0, cache_policy=NO_CACHE)
def run_ray_shard(shard: Shard, access: Sequence[Access] = ()) -> ShardResult:
    """Execute and commit the inputs of one shard, and log the inputs that are not ok."""
    import ray

    log = ShardLog()

    def report(outcome: Outcome) -> None:
        if outcome.kind != "ok":
            log.failure(outcome.input, outcome.kind, outcome.reason)

    try:
        with access_to(access):
            result = run(shard, report, place=ray.get_runtime_context().get_node_id())
        log.end(result.outcomes, result.seconds)
    finally:
        # Ray ends its workers immediately after the last shard, and unsent logs would be lost.
        send_logs()
    return result
