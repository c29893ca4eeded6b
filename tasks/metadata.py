"""The task that publishes the dataset's tables."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from batchmill.planning.prepare import Prepared
from batchmill.publishing.publish import publish_changes


@task(name="write_metadata", task_run_name="write tables", cache_policy=NO_CACHE)
def write_metadata(prepared: Prepared) -> str:
    """Write metadata.parquet, metadata.csv and failures.csv, if there is something new.

    Returns:
        Why nothing was published: the table breaks an expectation. Usually empty.
    """
    return publish_changes(prepared.ledger, prepared.manifest)
