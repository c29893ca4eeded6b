"""The task that loads and checks the manifest, and plans the run."""

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from batchmill.planning.job import Job
from batchmill.planning.prepare import Prepared
from batchmill.runs.context import prepare_once
from batchmill.sizes import list_counts


@task(name="load_manifest", task_run_name="load manifest", cache_policy=NO_CACHE)
def load_manifest(job: Job) -> Prepared:
    """Check a job, plan it, and log the number of inputs by reason."""
    prepared = prepare_once(job)
    logger = get_run_logger()
    logger.info("%s: %s", prepared.manifest.name, list_counts(prepared.plan.counts))
    if prepared.partition_changes:
        changes = "; ".join(prepared.partition_changes)
        logger.info("re-assigning all groups to partitions: %s", changes)
    return prepared
