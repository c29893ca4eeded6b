"""The task that tells a dataset's story on a page."""

from prefect import task

from batchmill.ledger import Ledger
from batchmill.report import Facts
from batchmill.report import write_report as write


@task(name="write_report")
def write_report(ledger: Ledger, run: int, dataset: str) -> Facts:
    """Write report.html from the ledger; returns what it tells."""
    return write(ledger, run, dataset)
