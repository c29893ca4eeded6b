"""Publish a dataset's tables: metadata.parquet, metadata.csv and failures.csv."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from batchmill.ledger.ledger import Ledger
from batchmill.maintenance.verify import FAILURES_CSV, METADATA_CSV
from batchmill.manifest import Manifest
from batchmill.partitioning import COLUMN
from batchmill.storage import METADATA, Store
from batchmill.storage.fingerprints import HashingFile

# The rows of this number of inputs are Python objects at a time. It limits the memory.
_CHUNK = 20_000
_FAILURE_COLUMNS = (
    "input",
    "outcome",
    "error",
    "message",
    "attempts",
    "seconds",
    "host",
    "traceback",
    "log",
)


class PublishedTable(NamedTuple):
    """The size in bytes and the content hash of a table."""

    size: int
    content: str


def publish(ledger: Ledger, manifest: Manifest) -> dict[str, PublishedTable]:
    """Write a dataset's tables, and return them by name. Each file is replaced atomically.

    `metadata` has one row per row that the step returned: `input`, `output`, `partition` (with
    partitions only), the manifest's columns and the step's columns. Rows are in the manifest's
    order. Inputs that the manifest no longer lists come last. `failures.csv` has one row per input
    that is not ok.
    """
    records = ledger.records(["input", "outcome", "rows", "carried"])
    position = pc.index_in(records["input"], value_set=manifest.inputs["input"])
    records = records.append_column("position", position).sort_by(
        [("position", "ascending"), ("input", "ascending")]
    )
    ok = pc.equal(records["outcome"], "ok")
    metadata = metadata_table(records.filter(ok), manifest)
    failures = failure_records(ledger)
    options: dict[str, Any] = {"compression": "zstd", "row_group_size": 128 * 1024}
    writers: dict[str, Callable[[HashingFile], object]] = {
        METADATA: lambda file: pq.write_table(metadata, file, **options),
        METADATA_CSV: lambda file: pcsv.write_csv(metadata, file),
        FAILURES_CSV: lambda file: pcsv.write_csv(failures, file),
    }
    return {name: _write(ledger.store, name, writer) for name, writer in writers.items()}


def _write(store: Store, name: str, writer: Callable[[HashingFile], object]) -> PublishedTable:
    written: list[PublishedTable] = []

    def write(file: BinaryIO) -> None:
        hashing = HashingFile(file)
        writer(hashing)
        written.append(PublishedTable(hashing.size, hashing.content))

    store.write_atomic(name, write)
    return written[-1]


def failure_records(ledger: Ledger) -> pa.Table:
    """Return the records of the inputs that are not ok, sorted by name."""
    records = ledger.records(_FAILURE_COLUMNS).select(list(_FAILURE_COLUMNS))
    return records.filter(pc.not_equal(records["outcome"], "ok")).sort_by("input")


def metadata_table(records: pa.Table, manifest: Manifest) -> pa.Table:
    """Return the metadata table.

    Args:
        records: The records with the outcome `ok`, in the order of the table. `position` is the
            record's row in the manifest, null if the manifest no longer lists the input.
        manifest: The manifest.
    """
    withdrawn = pc.is_null(records["position"])
    chunks = [
        _chunk(part.slice(start, _CHUNK), manifest)
        for part in (records.filter(pc.invert(withdrawn)), records.filter(withdrawn))
        for start in range(0, len(part), _CHUNK)
    ]
    found = [name for chunk in chunks for name in chunk.column_names]
    names = dict.fromkeys(["input", *(["output"] if "output" in found else [])])
    if manifest.partition is not None and COLUMN not in manifest.manifest_columns.column_names:
        names[COLUMN] = None
    names |= dict.fromkeys([*manifest.manifest_columns.column_names, *found])
    return pa.table({name: _column(name, chunks) for name in names})


def _chunk(records: pa.Table, manifest: Manifest) -> pa.Table:
    """Return the metadata rows of some records. The column types fit these rows only."""
    rows: list[dict[str, Any]] = []
    owners: list[int] = []
    for index, text in enumerate(records["rows"].to_pylist()):
        made = json.loads(text)
        rows += made
        owners += [index] * len(made)
    owner = pa.array(owners, pa.int64())
    columns: dict[str, pa.Array | pa.ChunkedArray] = {"input": records["input"].take(owner)}
    for name, carried in _carried(records, manifest):
        columns[name] = carried.take(owner)
    for key in dict.fromkeys(key for row in rows for key in row):
        values = [row.get(key) for row in rows]
        if key in columns:  # The step's value overrides the manifest's value.
            kept = columns[key].to_pylist()
            values = [row.get(key, kept[index]) for index, row in enumerate(rows)]
        columns[key] = _typed(values)
    if manifest.partition is not None:  # Withdrawn inputs get null: they are not for training.
        columns[COLUMN] = manifest.partition.take(records["position"]).take(owner)
    return pa.table(columns)


def _carried(
    records: pa.Table, manifest: Manifest
) -> Iterator[tuple[str, pa.Array | pa.ChunkedArray]]:
    """Yield the manifest's columns of some records. For withdrawn inputs, the ledger has them."""
    if records["position"].null_count == 0:
        for name in manifest.manifest_columns.column_names:
            yield name, manifest.manifest_columns[name].take(records["position"])
        return
    recorded = [json.loads(text) for text in records["carried"].to_pylist()]
    for name in dict.fromkeys(key for row in recorded for key in row):
        column = _typed([row.get(name) for row in recorded])
        if name in manifest.manifest_columns.column_names:
            # An earlier manifest may have had another type. Then the column becomes text.
            with suppress(pa.ArrowException):
                column = column.cast(manifest.manifest_columns.schema.field(name).type)
        yield name, column


def _typed(values: Sequence[Any]) -> pa.Array:
    """Return values as a column of the type that fits all of them, else as text."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {bool} or kinds <= {str} or kinds <= {float}:
        return pa.array(values)
    if kinds <= {int, float}:
        # A whole number may have more than 64 bits. Then the column becomes text.
        with suppress(OverflowError, pa.ArrowInvalid):
            return pa.array(values, pa.int64() if kinds == {int} else pa.float64())
    return pa.array([_text(value) for value in values], pa.string())


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _column(name: str, chunks: Sequence[pa.Table]) -> pa.ChunkedArray:
    """Join a column of all chunks. If their types differ, use a type that fits all values."""
    arrays = [
        chunk[name] if name in chunk.column_names else pa.chunked_array([pa.nulls(len(chunk))])
        for chunk in chunks
    ]
    types = {array.type for array in arrays} - {pa.null()}
    if len(types) <= 1:
        return _joined(arrays, types.pop() if types else pa.string())
    if types == {pa.int64(), pa.float64()}:
        with suppress(pa.ArrowInvalid):  # A float cannot hold every whole number.
            return _joined(arrays, pa.float64())
    return _joined(arrays, pa.string())


def _joined(arrays: Sequence[pa.ChunkedArray], kind: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array([part for array in arrays for part in array.cast(kind).chunks], kind)
