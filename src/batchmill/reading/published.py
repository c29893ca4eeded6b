"""Read the published table of a dataset, and the root of its inputs."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from batchmill.errors import OptionError, StoreError
from batchmill.layout import METADATA
from batchmill.ledger.open import last_run, open_ledger
from batchmill.ledger.published_record import PublishedRecord, read_published_record
from batchmill.planning.run_spec import read_spec
from batchmill.storage import Store, is_url, remote
from batchmill.storage.fingerprints import hash_file
from batchmill.storage.scratch import scratch_folder


class Published(NamedTuple):
    """Some columns of the table, the names of all columns, the hash of the file, and its run."""

    table: pa.Table
    columns: list[str]
    content: str
    run: int


def read_published(
    dataset: str, columns: Collection[str] | None = None, content: str = ""
) -> Published:
    """Read a dataset's table.

    Args:
        dataset: The dataset's path or URL.
        columns: The columns to read. Missing columns are ignored. None: all columns.
        content: The expected hash of the table. Empty: any table.

    Returns:
        The table.

    Raises:
        OptionError: There is no dataset or no table yet, or the table has another hash.
        StoreError: The table cannot be read, or differs from the table that a run published.
    """
    ledger = open_ledger(dataset)
    store = ledger.store
    # The record is read before the table: if a run publishes in between, its files are rejected.
    record = read_published_record(store)
    run = record.run if record else ledger.last_ended_run() or 0
    with _opened(store, dataset) as file:
        found = hash_file(file)
        if content and found != content:
            raise OptionError(
                f"{dataset}: its table changed after it was opened, so its samples may differ. "
                "Open it again."
            )
        _check_recorded(store, record, found)
        file.seek(0)
        try:
            # The pandas metadata in the schema would turn a manifest column into an index.
            parquet = pq.ParquetFile(file)
            names = parquet.schema_arrow.names
            chosen = [name for name in names if columns is None or name in columns]
            table = parquet.read(columns=chosen).replace_schema_metadata(None)
        except (OSError, pa.ArrowException) as error:
            raise StoreError(
                f"{dataset}/{METADATA}", f"cannot be read ({error}). Run the same command again."
            ) from error
    return Published(table, names, found, run)


def _check_recorded(store: Store, record: PublishedRecord | None, found: str) -> None:
    """Raise StoreError if the table's hash is not the one that was recorded at its publication."""
    recorded = record.tables.get(METADATA) if record else None
    if record is None or recorded is None or recorded["content"] == found:
        return
    # A run deletes the record before it replaces the table.
    if read_published_record(store) == record:
        raise StoreError(
            store.url_of(METADATA),
            f"differs from the table that run {record.run} published. Run the job again, which "
            "writes the table again.",
        )


def input_root(dataset: str) -> str:
    """Return the folder or URL that the inputs of a dataset's last run are relative to."""
    ledger = open_ledger(dataset)
    return read_spec(ledger, last_run(ledger, dataset)).root


@contextmanager
def _opened(store: Store, dataset: str) -> Iterator[BinaryIO]:
    """Open the table. A remote table is fetched first, because it is read twice."""
    place = store.url_of(METADATA)
    if not store.exists(METADATA):
        raise OptionError(
            f"{dataset}: has no {METADATA} yet, because a run writes it at its end. Complete "
            "a run first."
        )
    with scratch_folder() as folder:
        path = str(folder / METADATA) if is_url(place) else place
        if is_url(place):
            remote.fetch(place, path)
        try:
            with open(path, "rb") as file:
                yield file
        except OSError as error:
            raise StoreError(place, f"{error.strerror}.") from error
