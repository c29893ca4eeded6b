"""`batchmill report`: a dataset's story on one page."""

from batchmill.cli.console import console
from batchmill.cli.options import Dataset
from batchmill.ledger.lease import check_free
from batchmill.ledger.open import last_run, open_ledger
from batchmill.maintenance.verify import REPORT
from batchmill.publishing.report import write_report


def report(dataset: Dataset, /) -> None:
    """Rebuild a dataset's report.html: outcomes, speed, failures and their reasons.

    Each run that executes something writes it at its end.

    ```
    batchmill report dataset
    ```
    """
    ledger = open_ledger(dataset)
    run = last_run(ledger, dataset)
    check_free(ledger)
    write_report(ledger, run, dataset)
    console().print(ledger.store.url_of(REPORT))
