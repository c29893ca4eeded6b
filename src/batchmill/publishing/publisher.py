"""Writes what a dataset shows: its tables and its report."""

from batchmill.ledger.ledger import Ledger
from batchmill.planning.prepare import Prepared
from batchmill.publishing.publish import publish_changes
from batchmill.publishing.report import write_report


class Publisher:
    """Writes the tables and the report of a dataset in this process."""

    def write_tables(self, prepared: Prepared) -> str:
        """Write metadata.parquet, metadata.csv and failures.csv, unless they are up to date.

        Returns:
            Why nothing was published: the table breaks an expectation. Usually empty.
        """
        return publish_changes(prepared.ledger, prepared.manifest)

    def write_report(self, ledger: Ledger, run: int, dataset: str) -> None:
        """Write report.html for a run."""
        write_report(ledger, run, dataset)
