"""Read the published tables of a dataset."""

from collections.abc import Collection
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchmill.core.layout import METADATA
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.open import open_ledger
from batchmill.core.ledger.snapshots import Snapshot
from batchmill.core.ledger.table_metadata import TableMetadata
from batchmill.core.planning.run_spec import RunSpec, spec_of
from batchmill.core.storage.large_tables import SLICE_ROWS, collected
from batchmill.errors import OptionError, StoreError

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
        version: The version.
        added: The columns that batchmill has added.
    """

    table: pa.Table
    columns: list[str]
    version: Snapshot
    added: TableMetadata

    @property
    def spec(self) -> RunSpec:
        """The settings of the run that published it, such as the root of its inputs."""
        return spec_of(self.version.settings)


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
        LedgerError: The table differs from the table that a run published.
        StoreError: The table cannot be read.
    """
    ledger = open_ledger(dataset)
    snapshots = ledger.snapshots
    read = partial(_read, ledger, columns=columns)
    if content or version is not None:
        snapshot = snapshots.with_table(content) if content else snapshots.find(version or "")
        if snapshot is None:
            raise OptionError(f"{dataset}: {_REMOVED}")
        published = read(snapshot)
    elif (last := snapshots.read_last(read)) is not None:
        published = last
    else:
        raise OptionError(
            f"{dataset}: has no {METADATA} yet, because a run writes it at its end. Complete a run "
            "first."
        )
    column = published.added.stale
    if column and not stale:
        fresh = published.table.filter(pc.invert(published.table[column]))
        published = published._replace(table=fresh)
    if column and columns is not None and column not in columns:
        published = published._replace(table=published.table.drop_columns(column))
    return published


def check_kept(dataset: str, content: str) -> None:
    """Raise StoreError if the version that has a table was removed.

    Args:
        dataset: The dataset's path or URL.
        content: The hash of the table.
    """
    if open_ledger(dataset).snapshots.with_table(content) is None:
        raise StoreError(dataset, _REMOVED)


def _read(ledger: Ledger, version: Snapshot, columns: Collection[str] | None) -> Published:
    """Read the table of a version, and check its hash."""
    # The pandas metadata in the schema would turn a manifest column into an index.
    parquet = pq.ParquetFile(pa.BufferReader(ledger.files.read_table(version)))
    names = parquet.schema_arrow.names
    added = TableMetadata.of(parquet.schema_arrow)
    needed = {*(columns or ()), *added.added}
    chosen = [name for name in names if columns is None or name in needed]
    batches = parquet.iter_batches(SLICE_ROWS, columns=chosen)
    tables = (pa.Table.from_batches([batch]).replace_schema_metadata(None) for batch in batches)
    schema = pa.schema([parquet.schema_arrow.field(name) for name in chosen])
    return Published(collected(tables, schema), names, version, added)
