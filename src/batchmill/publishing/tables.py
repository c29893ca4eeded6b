"""Publish a dataset's tables: metadata.parquet, metadata.csv and failures.csv."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from batchmill.ledger.ledger import Ledger
from batchmill.manifest import Manifest
from batchmill.partitioning import COLUMN
from batchmill.storage import METADATA

_METADATA_CSV, _FAILURES_CSV = "metadata.csv", "failures.csv"
TABLES = (METADATA, _METADATA_CSV, _FAILURES_CSV)
# Rows of so many inputs are Python objects at a time; then they are Arrow.
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


def publish(ledger: Ledger, manifest: Manifest) -> None:
    """Write the tables of what the ledger holds, each replaced at once.

    `metadata` has a row for each that a step gave: `input`, `output`, `partition` where there are
    any, the manifest's columns, the step's own. Its order is the manifest's, whatever the order of
    execution; inputs that the manifest no longer lists come last. `failures.csv` has a row for each
    input that is not ok.
    """
    records = ledger.records(["input", "outcome", "rows", "carried"])
    position = pc.index_in(records["input"], value_set=_one_array(manifest.inputs["input"]))
    records = records.append_column("position", position).sort_by(
        [("position", "ascending"), ("input", "ascending")]
    )
    ok = pc.equal(records["outcome"], "ok")
    metadata = metadata_table(records.filter(ok), manifest)
    write, failures = ledger.store.write_atomic, failure_records(ledger)
    write(METADATA, lambda file: _write_parquet(metadata, file))
    write(_METADATA_CSV, lambda file: pcsv.write_csv(metadata, file))
    write(_FAILURES_CSV, lambda file: pcsv.write_csv(failures, file))


def _write_parquet(table: pa.Table, file: BinaryIO) -> None:
    pq.write_table(table, file, compression="zstd", row_group_size=128 * 1024)


def failure_records(ledger: Ledger) -> pa.Table:
    """Return the inputs that are not ok, sorted by name: outcome, reason, traceback, log."""
    records = ledger.records(_FAILURE_COLUMNS).select(list(_FAILURE_COLUMNS))
    return records.filter(pc.not_equal(records["outcome"], "ok")).sort_by("input")


def metadata_table(records: pa.Table, manifest: Manifest) -> pa.Table:
    """Make the metadata table of `ok` records, which are in its order already.

    `position` is the record's row in the manifest, null for one that the manifest no longer lists.
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
    """Make the metadata rows of some records; the columns' types are those of these rows."""
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
        if key in columns:  # What a step says of an input goes before what the manifest says.
            kept = columns[key].to_pylist()
            values = [row.get(key, kept[index]) for index, row in enumerate(rows)]
        columns[key] = _typed(values)
    if manifest.partition is not None:  # Of withdrawn ones, none: nobody is to train with them.
        columns[COLUMN] = manifest.partition.take(records["position"]).take(owner)
    return pa.table(columns)


def _carried(
    records: pa.Table, manifest: Manifest
) -> Iterator[tuple[str, pa.Array | pa.ChunkedArray]]:
    """Yield the manifest's columns of these records; those of withdrawn ones are in the ledger."""
    if records["position"].null_count == 0:
        for name in manifest.manifest_columns.column_names:
            yield name, manifest.manifest_columns[name].take(records["position"])
        return
    recorded = [json.loads(text) for text in records["carried"].to_pylist()]
    for name in dict.fromkeys(key for row in recorded for key in row):
        column = _typed([row.get(name) for row in recorded])
        if name in manifest.manifest_columns.column_names:
            # It may have had another type once; then the column becomes text.
            with suppress(pa.ArrowException):
                column = column.cast(manifest.manifest_columns.schema.field(name).type)
        yield name, column


def _typed(values: Sequence[Any]) -> pa.Array:
    """Make a column of values: of the one type that holds them all, else of text."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {bool} or kinds <= {str} or kinds <= {float}:
        return pa.array(values)
    if kinds <= {int, float}:
        # A whole number may have more bits than the type; then the column is text.
        with suppress(OverflowError, pa.ArrowInvalid):
            return pa.array(values, pa.int64() if kinds == {int} else pa.float64())
    return pa.array([_text(value) for value in values], pa.string())


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _column(name: str, chunks: Sequence[pa.Table]) -> pa.ChunkedArray:
    """Join a column of all chunks; where their types differ, in the type that holds them all."""
    arrays = [
        chunk[name] if name in chunk.column_names else pa.chunked_array([pa.nulls(len(chunk))])
        for chunk in chunks
    ]
    types = {array.type for array in arrays} - {pa.null()}
    if len(types) <= 1:
        return _joined(arrays, types.pop() if types else pa.string())
    if types == {pa.int64(), pa.float64()}:
        with suppress(pa.ArrowInvalid):  # Not every whole number is one of floating point.
            return _joined(arrays, pa.float64())
    return _joined(arrays, pa.string())


def _joined(arrays: Sequence[pa.ChunkedArray], kind: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array([part for array in arrays for part in array.cast(kind).chunks], kind)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks)
