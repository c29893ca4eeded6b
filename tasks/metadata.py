"""The task that publishes the dataset's tables."""

from prefect import task

from batchmill.job import Prepared
from batchmill.publish import publish


@task(name="write_metadata")
def write_metadata(prepared: Prepared) -> None:
    """Write metadata.parquet, metadata.csv and failures.csv from the ledger."""
    publish(prepared.ledger, prepared.manifest)
