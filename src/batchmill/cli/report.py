"""`batchmill report`: rebuild a dataset's report."""

from batchmill.cli.console import console
from batchmill.cli.options import Dataset
from batchmill.layout import REPORT
from batchmill.ledger.lease import check_free
from batchmill.ledger.open import last_run, open_ledger
from batchmill.publishing.report import write_report


def report(dataset: Dataset, /) -> None:
    """Rebuild a dataset's report.html: outcomes, speed, failures and their reasons.

    A run that executes inputs also writes the report when it ends.

    ```
    batchmill report dataset
    ```
    """
    ledger = open_ledger(str(dataset))
    run = last_run(ledger, str(dataset))
    check_free(ledger)
    write_report(ledger, run, str(dataset))
    console().print(ledger.store.url_of(REPORT))
