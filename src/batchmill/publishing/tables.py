"""Publish a dataset's tables: metadata.parquet, metadata.csv and failures.csv."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from batchmill.layout import (
    FAILURES_CSV,
    METADATA,
    METADATA_CSV,
    PARTITION_COLUMN,
)
from batchmill.ledger.ledger import Ledger
from batchmill.ledger.parts import has_result
from batchmill.manifest import Manifest
from batchmill.manifest.arrow_columns import tensors_as_lists
from batchmill.partitions.record import last_assignment
from batchmill.publishing.failure_groups import read_failures
from batchmill.publishing.metadata_table import metadata_table, texts
from batchmill.storage import Store, in_threads
from batchmill.storage.fingerprints import HashingFile
from batchmill.storage.large_tables import take
from batchmill.storage.name_search import rows_of
from batchmill.storage.store import write_and_hash


class Tables(NamedTuple):
    """The tables of a dataset that are to be written."""

    metadata: pa.Table
    failures: pa.Table


def make_tables(
    ledger: Ledger, manifest: Manifest, declared: Mapping[str, str] | None = None
) -> Tables:
    """Make a dataset's tables from its ledger.

    `metadata` has one row per row that the step returned: `input`, `output`, `partition` (with
    partitions only), the manifest's columns and the step's columns. Rows are in the manifest's
    order, without inputs that the manifest no longer lists. Only the first `MAX_COLUMNS` keys of
    the step become columns. `more_columns` has the others as JSON. If inputs that are not ok keep
    earlier results, the column `stale` is true for their rows. If outputs are in packs, the column
    `pack` has their addresses. The metadata of the Parquet file names the columns with further
    files of a row. `failures.csv` has one row per input that is not ok.

    Args:
        ledger: The ledger.
        manifest: The manifest of the last run.
        declared: The Arrow type of each column that has one, as in `DeclaredRows.columns`.

    Returns:
        The tables by name.
    """
    records = ledger.records(["input", "outcome", "rows", "outputs", "result_run"])
    position = rows_of(records["input"], manifest.inputs["input"])
    # A file that is too young is no withdrawn input. It has no other columns.
    is_young = pc.is_in(records["input"], value_set=manifest.too_young)
    records = records.append_column("position", position)
    is_shown = pc.and_(pc.or_(pc.is_valid(position), is_young), has_result(records))
    records = take(records, _in_order(records, np.flatnonzero(np.asarray(is_shown))))
    if manifest.partition is not None:
        records = records.append_column(PARTITION_COLUMN, _assigned(ledger, records["input"]))
    metadata = metadata_table(records, manifest, declared or {})
    return Tables(metadata, read_failures(ledger).table)


def _in_order(records: pa.Table, rows: np.ndarray) -> pa.Array:
    """Sort rows by position. Those without one are at the end, sorted by input."""
    position = records["position"].fill_null(-1).to_numpy()[rows]
    young = rows[position < 0]
    names = records["input"].take(pa.array(young))
    young = young[pc.sort_indices(names).to_numpy()]
    listed = rows[position >= 0]
    return pa.array(np.append(listed[np.argsort(position[position >= 0])], young))


def write_tables(store: Store, tables: Tables) -> dict[str, dict[str, Any]]:
    """Write a dataset's tables. Each file is replaced atomically.

    Returns:
        The size in bytes, the content hash and the number of rows of each table by name.
    """
    write_parquet = partial(pq.write_table, compression="zstd", row_group_size=128 * 1024)
    writes: list[tuple[str, pa.Table, Callable[[pa.Table, HashingFile], object]]] = [
        (METADATA, tables.metadata, write_parquet),
        (METADATA_CSV, tables.metadata, _write_csv),
        (FAILURES_CSV, tables.failures, _write_csv),
    ]
    written = in_threads(lambda one: _write(store, *one), writes, store.threads)
    return dict(zip((name for name, *_ in writes), written, strict=True))


def _write_csv(table: pa.Table, file: HashingFile) -> None:
    pcsv.write_csv(without_lists(table), file)


def _assigned(ledger: Ledger, names: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the recorded partition of each input."""
    last = last_assignment(ledger)
    if last is None:
        return pa.chunked_array([pa.nulls(len(names), pa.string())])
    return last.rows[PARTITION_COLUMN].take(rows_of(names, last.rows["input"]))


def _write(
    store: Store, name: str, table: pa.Table, writer: Callable[[pa.Table, HashingFile], object]
) -> dict[str, Any]:
    written = write_and_hash(store, name, partial(writer, table))
    return {"size": written.size, "content": written.content, "rows": len(table)}


def without_lists(table: pa.Table) -> pa.Table:
    """Return a table for CSV, which has no lists: they become JSON text."""
    table = tensors_as_lists(table)
    for number, field in enumerate(table.schema):
        if pa.types.is_nested(field.type):
            table = table.set_column(number, field.name, texts(table.column(number).to_pylist()))
    return table
