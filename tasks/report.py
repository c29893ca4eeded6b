"""The task that writes a dataset's report."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from batchmill.ledger.ledger import Ledger
from batchmill.publishing.report import Report
from batchmill.publishing.report import write_report as write


@task(name="write_report", task_run_name="write report", cache_policy=NO_CACHE)
def write_report(ledger: Ledger, run: int, dataset: str) -> Report:
    """Write report.html from the ledger, and return the report's content."""
    return write(ledger, run, dataset)
