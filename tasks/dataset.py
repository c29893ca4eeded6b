"""The tasks that plan a run, and that write the tables and the report of its dataset."""

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from batchmill.ledger.ledger import Ledger
from batchmill.planning.job import Job
from batchmill.planning.prepare import Prepared
from batchmill.publishing.publish import publish_changes
from batchmill.publishing.report import Report
from batchmill.publishing.report import write_report as write
from batchmill.runs.run import prepare_once
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


@task(name="write_metadata", task_run_name="write tables", cache_policy=NO_CACHE)
def write_metadata(prepared: Prepared, run: int) -> str:
    """Write metadata.parquet, metadata.csv and failures.csv, if there is something new.

    Returns:
        Why nothing was published: the table breaks an expectation. Usually empty.
    """
    return publish_changes(prepared, run)


@task(name="write_report", task_run_name="write report", cache_policy=NO_CACHE)
def write_report(ledger: Ledger, run: int, dataset: str) -> Report:
    """Write report.html from the ledger, and return the report's content."""
    return write(ledger, run, dataset)
