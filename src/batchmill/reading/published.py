"""Read the published table of a dataset, and the root of its inputs."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchmill.errors import OptionError, StoreError
from batchmill.layout import METADATA
from batchmill.ledger.open import last_run, open_ledger
from batchmill.ledger.published_tables import TableMetadata, read_published_record
from batchmill.ledger.versions import Versions
from batchmill.planning.run_spec import RunSpec, read_spec
from batchmill.storage import Store, is_url, remote
from batchmill.storage.fingerprints import hash_file
from batchmill.storage.large_tables import SLICE_ROWS, collected
from batchmill.storage.scratch import scratch_folder

_REMOVED = (
    "the version that was opened does not exist any more. Later runs have removed it, or its table "
    "was changed. Open the dataset again. To keep a version, give it a name (batchmill keep), or "
    "keep more versions (--keep-versions)."
)


class Published(NamedTuple):
    """A part of a table.

    Attributes:
        table: Some columns.
        columns: The names of all columns.
        content: The hash of the file.
        added: The columns that batchmill has added.
    """

    table: pa.Table
    columns: list[str]
    content: str
    added: TableMetadata


def read_published(
    dataset: str,
    columns: Collection[str] | None = None,
    content: str = "",
    version: int | str | None = None,
    *,
    stale: bool = True,
) -> Published:
    """Read a dataset's table.

    Args:
        dataset: The dataset's path or URL.
        columns: The columns to read. Missing columns are ignored. None: all columns.
        content: The hash of the table to read. Empty: the table of the `version`.
        version: The number or name of a version. None: the last one.
        stale: False to leave out earlier results of inputs that are not ok.

    Returns:
        The table.

    Raises:
        OptionError: There is no dataset or no table yet, or the version was removed.
        StoreError: The table cannot be read, or differs from the table that a run published.
    """
    store = open_ledger(dataset).store
    versions = Versions(store)
    if content:
        published = _read_content(dataset, store, columns, content)
    elif version is not None:
        found = versions.find(version)
        published = _read(dataset, store, versions.table_name(found.number), columns, found.table)
    else:
        published = _read_last(dataset, store, columns)
    column = published.added.stale
    if column and not stale:
        fresh = published.table.filter(pc.invert(published.table[column]))
        published = published._replace(table=fresh)
    if column and columns is not None and column not in columns:
        published = published._replace(table=published.table.drop_columns(column))
    return published


def _read_last(dataset: str, store: Store, columns: Collection[str] | None) -> Published:
    # The record is read before the table. A run deletes the record before it replaces the table.
    record = read_published_record(store)
    published = _read(dataset, store, METADATA, columns)
    recorded = record.tables.get(METADATA) if record else None
    is_other = recorded is not None and recorded["content"] != published.content
    if record and is_other and read_published_record(store) == record:
        raise StoreError(
            store.url_of(METADATA),
            f"differs from the table that run {record.run} published. Run the job again, which "
            "writes the table again.",
        )
    return published


def _read_content(
    dataset: str, store: Store, columns: Collection[str] | None, content: str
) -> Published:
    """Read the table with a hash: the last one, or that of an earlier version."""
    versions = Versions(store)
    numbers = [version.number for version in versions.read_all() if version.table == content]
    for name in (*map(versions.table_name, numbers), METADATA):
        with suppress(StoreError, OptionError):
            return _read(dataset, store, name, columns, content)
    raise OptionError(f"{dataset}: {_REMOVED}")


def check_kept(dataset: str, content: str) -> None:
    """Raise StoreError if the version that has a table was removed.

    Args:
        dataset: The dataset's path or URL.
        content: The hash of the table.
    """
    store = open_ledger(dataset).store
    record = read_published_record(store)
    kept = {version.table for version in Versions(store).read_all()}
    if record:  # A dataset of an older batchmill has no versions yet.
        kept.add(record.tables[METADATA]["content"])
    if kept and content not in kept:
        raise StoreError(dataset, _REMOVED)


def _read(
    dataset: str, store: Store, name: str, columns: Collection[str] | None, content: str = ""
) -> Published:
    """Read a table by its name, and check its hash if `content` is given."""
    place = store.url_of(name)
    with _opened(store, dataset, name) as file:
        found = hash_file(file)
        if content and found != content:
            raise StoreError(place, "differs from the table that was published.")
        file.seek(0)
        try:
            # The pandas metadata in the schema would turn a manifest column into an index.
            parquet = pq.ParquetFile(file)
            names = parquet.schema_arrow.names
            added = TableMetadata.of(parquet.schema_arrow)
            needed = {*(columns or ()), *added.added}
            chosen = [name for name in names if columns is None or name in needed]
            schema = pa.schema([parquet.schema_arrow.field(name) for name in chosen])
            table = collected(
                (
                    pa.Table.from_batches([batch]).replace_schema_metadata(None)
                    for batch in parquet.iter_batches(SLICE_ROWS, columns=chosen)
                ),
                schema,
            )
        except (OSError, pa.ArrowException) as error:
            raise StoreError(
                place, f"cannot be read ({error}). Run the same command again."
            ) from error
    return Published(table, names, found, added)


def last_spec(dataset: str) -> RunSpec:
    """Return the settings of a dataset's last run, such as the root of its inputs."""
    ledger = open_ledger(dataset)
    return read_spec(ledger, last_run(ledger, dataset))


@contextmanager
def _opened(store: Store, dataset: str, name: str) -> Iterator[BinaryIO]:
    """Open a table. A remote table is fetched first, because it is read twice."""
    place = store.url_of(name)
    if not store.exists(name):
        raise OptionError(
            f"{dataset}: has no {name} yet, because a run writes it at its end. Complete "
            "a run first."
        )
    with local_copy(store, name) as path:
        try:
            with open(path, "rb") as file:
                yield file
        except OSError as error:
            raise StoreError(place, f"{error.strerror}.") from error


@contextmanager
def local_copy(store: Store, name: str) -> Iterator[Path]:
    """Yield the path of a file of a store. A remote file is fetched first."""
    place = store.url_of(name)
    if not is_url(place):
        yield Path(place)
        return
    with scratch_folder() as folder:
        path = folder / "file"
        remote.fetch(place, str(path))
        yield path
