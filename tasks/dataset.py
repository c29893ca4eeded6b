"""The tasks that plan a run, and that write the tables and the report of its dataset."""

from typing import Any
from urllib.parse import quote

from prefect import task
from prefect.assets import add_asset_metadata, materialize
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.states import Completed, Failed

from batchmill.core.ledger.ledger import Ledger
from batchmill.core.planning.job import Job
from batchmill.core.planning.prepare import Prepared
from batchmill.core.sizes import list_counts
from batchmill.core.urls import is_url
from batchmill.datasets.publishing.publish import publish_changes
from batchmill.datasets.publishing.report import Report
from batchmill.datasets.publishing.report import write_report as write
from batchmill.runs.run import prepare_once

# The longest key that Prefect accepts for an asset.
_LONGEST_KEY = 512


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


# A call replaces the asset by the dataset.
@materialize(
    "batchmill://dataset", by="batchmill", name="write_metadata", task_run_name="write tables",
    cache_policy=NO_CACHE,
)  # fmt: skip
def write_metadata(prepared: Prepared, run: int) -> State[Any]:
    """Write metadata.parquet, metadata.csv and failures.csv, if there is something new.

    Returns:
        A failed state if the table breaks an expectation, so nothing was published. If the tables
        were up to date, a completed state with a name for which Prefect reports no new asset.
    """
    unpublished = publish_changes(prepared, run)
    if unpublished:
        return Failed(name="Unpublished", message=unpublished)
    version = prepared.ledger.snapshots.last_version()
    if version is None or version.number != run:
        return Completed(name="Cached", message="The tables were up to date.")
    for asset in assets_at(prepared.job.output):
        add_asset_metadata(asset, {"version": run, "rows": version.rows})
    return Completed(message=f"Version {run}.")


def assets_at(place: str) -> list[str]:
    """Return the key of the asset at a path or URL: none if Prefect does not accept the key.

    >>> assets_at("/data/my clips")
    ['file:///data/my~20clips']
    """
    # A path may have bytes that are not UTF-8.
    quoted = quote(place, safe=":/" if is_url(place) else "/", errors="surrogateescape")
    url = quoted if is_url(place) else f"file://{quoted}"
    key = url.replace("%", "~")  # Prefect rejects % in a key, and spaces.
    return [key] if place and len(key) <= _LONGEST_KEY else []


@task(name="write_report", task_run_name="write report", cache_policy=NO_CACHE)
def write_report(ledger: Ledger, run: int, dataset: str) -> Report:
    """Write report.html from the ledger, and return the report's content."""
    return write(ledger, run, dataset)
