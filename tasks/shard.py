"""The task that runs one shard on a Ray worker."""

from collections.abc import Sequence

import ray
from batchmill.tasks.logs import send_logs
from prefect import task
from prefect.logging import get_run_logger

from batchmill.outcome import Outcome
from batchmill.run_shard import ShardResult
from batchmill.run_shard import run_shard as run
from batchmill.shard import Shard
from batchmill.storage.access import Access, access_to

# Ray and Prefect must not repeat a shard by themselves: the ledger knows which inputs are left.
NO_RETRIES = 0
SHOWN_FAILURES = 100


@task(
    name="run_shard",
    task_run_name="{shard.title}",
    retries=NO_RETRIES,
)
def run_shard(shard: Shard, access: Sequence[Access] = ()) -> ShardResult:
    """Execute and commit the inputs of one shard; its log names those that are not ok."""
    logger = get_run_logger()
    failures = 0

    def report(outcome: Outcome) -> None:
        nonlocal failures
        if outcome.kind != "ok":
            failures += 1
            if failures <= SHOWN_FAILURES:
                logger.error("%s: %s: %s", outcome.input, outcome.kind, outcome.reason)

    try:
        with access_to(access):
            result = run(shard, report, place=ray.get_runtime_context().get_node_id())
        counts = ", ".join(f"{count} {kind}" for kind, count in result.outcomes.items())
        logger.info("%s in %.1f s", counts, result.seconds)
    finally:
        # After the last shard, Ray ends its workers at once.
        send_logs()
    return result


def warm_up() -> None:
    """Import what a shard will import: torch takes a second, and the run has not begun yet."""
    import batchmill.batch_step
    import batchmill.isolation  # noqa: F401
