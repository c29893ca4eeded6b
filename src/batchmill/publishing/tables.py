"""Publish a dataset's tables: metadata.parquet, metadata.csv and failures.csv."""

import json
import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from batchmill.layout import (
    FAILURES_CSV,
    METADATA,
    METADATA_CSV,
    MORE_COLUMNS,
    OUTPUT_COLUMN,
    PARTITION_COLUMN,
)
from batchmill.ledger.ledger import Ledger
from batchmill.ledger.parts import has_result
from batchmill.ledger.table_metadata import TableMetadata
from batchmill.manifest import Manifest
from batchmill.manifest.arrow_columns import tensors_as_lists
from batchmill.partitions.record import last_assignment
from batchmill.publishing.declared_columns import as_vectors, declared_array
from batchmill.publishing.failure_groups import read_failures
from batchmill.storage import Store, in_threads
from batchmill.storage.fingerprints import HashingFile
from batchmill.storage.large_tables import kept, take
from batchmill.storage.name_search import rows_of

# The rows of this number of inputs, and about this size of text, are Python objects at a time. It
# limits the memory.
_CHUNK = 20_000
_CHUNK_BYTES = 256 * 2**20
# The step's keys that become columns. Each column takes memory in every row, so a table with more
# columns than this would soon take more memory than a machine has.
MAX_COLUMNS = 2000
_STALE, _PACK = "stale", "pack"
_KINDS: dict[type, str] = {
    int: "a number",
    float: "a number",
    str: "text",
    bool: "true or false",
    list: "a list",
    dict: "a dict",
}

logger = logging.getLogger(__name__)

_Column: TypeAlias = pa.Array | pa.ChunkedArray


class PublishedTable(NamedTuple):
    """The size in bytes, the content hash and the number of rows of a table."""

    size: int
    content: str
    rows: int


class Tables(NamedTuple):
    """The tables of a dataset that are to be written."""

    metadata: pa.Table
    failures: pa.Table


class _Chunk(NamedTuple):
    """The metadata rows of some records.

    Attributes:
        columns: The columns.
        more: The keys above the limit, as JSON objects.
        stale: True for the rows of earlier results.
        files: For each column of the step with files, their addresses in packs, null for other
            files.
        kinds: For each column that is not declared, an input for each kind of its values.
    """

    columns: dict[str, _Column]
    more: pa.Array
    stale: pa.Array
    files: dict[str, pa.Array]
    kinds: dict[str, dict[str, str]]

    @classmethod
    def mapped(cls, chunks: Iterable["_Chunk"]) -> list["_Chunk"]:
        """Return chunks that are mapped if they are large together."""
        outlines: list[_Chunk] = []

        def tables() -> Iterator[pa.Table]:
            for chunk in chunks:
                arrays = [chunk.more, chunk.stale, *chunk.columns.values(), *chunk.files.values()]
                none = pa.nulls(0)
                outlines.append(
                    chunk._replace(
                        columns=dict.fromkeys(chunk.columns, none),
                        files=dict.fromkeys(chunk.files, none),
                        more=none,
                        stale=none,
                    )
                )
                yield pa.table(arrays, [str(number) for number in range(len(arrays))])

        return [
            chunk._with([_one_array(column) for column in table.columns])
            for table, chunk in zip(kept(tables()), outlines, strict=True)
        ]

    def _with(self, arrays: Sequence[pa.Array]) -> "_Chunk":
        """Return the chunk with other arrays, in the order in which `mapped` keeps them."""
        more, stale, *others = arrays
        columns = dict(zip(self.columns, others, strict=False))
        files = dict(zip(self.files, others[len(columns) :], strict=True))
        return self._replace(more=more, stale=stale, columns=columns, files=files)

    def only(self, names: Container[str]) -> "_Chunk":
        """Return the chunk without other columns. It limits the memory."""
        columns = {name: self.columns[name] for name in self.columns if name in names}
        return self._replace(columns=columns)


class _StepKeys:
    """Selects the step's keys that become columns: the first keys in the order of the table.

    Args:
        others: The columns that do not count. They are always accepted.
    """

    def __init__(self, others: Iterable[str]) -> None:
        self._accepted = set(others)
        self._left = MAX_COLUMNS

    def accept(self, key: str) -> bool:
        """Return whether a key becomes a column."""
        if key in self._accepted:
            return True
        if not self._left:
            return False
        self._left -= 1
        self._accepted.add(key)
        return True


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    # Arrow would copy a single chunk.
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


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


def write_tables(store: Store, tables: Tables) -> dict[str, PublishedTable]:
    """Write a dataset's tables, and return them by name. Each file is replaced atomically."""
    options: dict[str, Any] = {"compression": "zstd", "row_group_size": 128 * 1024}
    write_metadata = partial(pq.write_table, **options)
    writes: dict[str, Callable[[], PublishedTable]] = {
        METADATA: lambda: _write(store, METADATA, tables.metadata, write_metadata),
        METADATA_CSV: lambda: _write(
            store, METADATA_CSV, without_lists(tables.metadata), pcsv.write_csv
        ),
        FAILURES_CSV: lambda: _write(store, FAILURES_CSV, tables.failures, pcsv.write_csv),
    }
    written = in_threads(lambda write: write(), [*writes.values()], store.threads)
    return dict(zip(writes, written, strict=True))


def _assigned(ledger: Ledger, names: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the recorded partition of each input."""
    last = last_assignment(ledger)
    if last is None:
        return pa.chunked_array([pa.nulls(len(names), pa.string())])
    return last.rows[PARTITION_COLUMN].take(rows_of(names, last.rows["input"]))


def _write(
    store: Store, name: str, table: pa.Table, writer: Callable[[pa.Table, HashingFile], object]
) -> PublishedTable:
    written: list[PublishedTable] = []

    def write(file: BinaryIO) -> None:
        hashing = HashingFile(file)
        writer(table, hashing)
        written.append(PublishedTable(hashing.size, hashing.content, len(table)))

    store.write_atomic(name, write)
    return written[-1]


def metadata_table(records: pa.Table, manifest: Manifest, declared: Mapping[str, str]) -> pa.Table:
    """Return the metadata table.

    Args:
        records: The records with a result, in the order of the table. `position` is the record's
            row in the manifest, null if its file is too young. `result_run` is valid for an earlier
            result. `partition` is the input's partition. Without partitions, there is no such
            column.
        manifest: The manifest.
        declared: The Arrow type of each column that has one.
    """
    keys = _StepKeys(["output", *manifest.manifest_columns.column_names])
    parts = list(_parts(records))
    chunks = _Chunk.mapped(_chunk(part, manifest, keys, declared) for part in parts)
    _warn_of_mixed_types(chunks)
    found = [name for chunk in chunks for name in chunk.columns]
    names = dict.fromkeys(["input", *(["output"] if "output" in found else [])])
    if (
        manifest.partition is not None
        and PARTITION_COLUMN not in manifest.manifest_columns.column_names
    ):
        names[PARTITION_COLUMN] = None
    names |= dict.fromkeys([*manifest.manifest_columns.column_names, *found])
    columns = {name: _column(name, chunks) for name in names}
    columns |= {name: as_vectors(columns[name]) for name in declared if columns.get(name)}
    mixed = frozenset(name for name, column in columns.items() if column is None)
    if mixed:
        # A typed chunk no longer has the text of a value: 1 and 1.0 are equal floats.
        texts = _Chunk.mapped(_chunk(part, manifest, keys, {}, mixed).only(mixed) for part in parts)
        columns |= {name: _joined(_arrays(name, texts), pa.string()) for name in mixed}
    more = pa.chunked_array([chunk.more for chunk in chunks], pa.string())
    if more.null_count < len(more):
        columns[_free_name(MORE_COLUMNS, columns)] = more
    added: dict[str, str] = {}
    for name in dict.fromkeys(name for chunk in chunks for name in chunk.files):
        packs = pa.chunked_array(
            [chunk.files.get(name, pa.nulls(len(chunk.more), pa.string())) for chunk in chunks]
        )
        column = ""
        if packs.null_count < len(packs):
            column = _free_name(_PACK if name == OUTPUT_COLUMN else f"{name}_{_PACK}", columns)
            columns[column] = packs
        if column or name != OUTPUT_COLUMN:
            added[name] = column
    stale = pa.chunked_array([chunk.stale for chunk in chunks], pa.bool_())
    stale_column = ""
    if pc.any(stale).as_py():
        stale_column = _free_name(_STALE, columns)
        columns[stale_column] = stale
    metadata = TableMetadata(stale=stale_column, packs=added)
    return pa.table(columns).replace_schema_metadata(metadata.as_arrow())


def _parts(records: pa.Table) -> Iterator[pa.Table]:
    """Divide records into parts of at most `_CHUNK` records and `_CHUNK_BYTES` of rows."""
    ends = np.cumsum(pc.binary_length(records["rows"]).to_numpy(), dtype=np.int64)
    start = 0
    while start < len(records):
        limit = (ends[start - 1] if start else 0) + _CHUNK_BYTES
        stop = min(int(np.searchsorted(ends, limit, side="right")), start + _CHUNK)
        stop = max(stop, start + 1)
        yield records.slice(start, stop - start)
        start = stop


def _free_name(name: str, names: Container[str]) -> str:
    while name in names:
        name += "_"
    return name


def _chunk(
    records: pa.Table,
    manifest: Manifest,
    keys: _StepKeys,
    declared: Mapping[str, str],
    mixed: frozenset[str] = frozenset(),
) -> _Chunk:
    """Return the metadata rows of some records.

    The types of columns that are not `declared` fit these rows only. The columns `mixed` are text.
    """
    rows: list[dict[str, Any]] = []
    owners: list[int] = []
    for index, text in enumerate(records["rows"].to_pylist()):
        made = json.loads(text)
        rows += made
        owners += [index] * len(made)
    owner = pa.array(owners, pa.int64())
    columns: dict[str, _Column] = {"input": records["input"].take(owner)}
    place = records["position"].take(owner)
    for name in manifest.manifest_columns.column_names:
        column = manifest.manifest_columns[name].take(place)
        columns[name] = _texts(column.to_pylist()) if name in mixed else column
    cells, more = _cells_of(rows, keys)
    kinds: dict[str, dict[str, str]] = {}
    for key, (places, values) in cells.items():
        convert = _texts if key in mixed else _typed
        if key in declared:
            convert = partial(declared_array, kind=declared[key], other=_typed)
        else:
            kinds[key] = {
                kind: records["input"][owners[places[at]]].as_py()
                for kind, at in _kinds(values).items()
            }
        if key in columns:  # The step's value overrides the manifest's value.
            merged = columns[key].to_pylist()
            for place, value in zip(places, values, strict=True):
                merged[place] = value
            columns[key] = convert(merged)
        else:
            columns[key] = _spread(convert(values), places, len(rows))
    if PARTITION_COLUMN in records.column_names:
        columns[PARTITION_COLUMN] = records[PARTITION_COLUMN].take(owner)
    stale = pc.is_valid(records["result_run"]).combine_chunks().take(owner)
    return _Chunk(columns, more, stale, _files(records["outputs"], cells, len(rows)), kinds)


def _files(
    outputs: pa.ChunkedArray, cells: Mapping[str, tuple[list[int], list[Any]]], count: int
) -> dict[str, pa.Array]:
    """Return the columns with files. Their values are addresses, null for files outside of packs.

    Args:
        outputs: The outputs of some records.
        cells: The cells of the step's rows, as `_cells_of` returns them.
        count: The number of rows.
    """
    files = pc.list_flatten(outputs).combine_chunks()
    names = files.field("path").to_pylist()
    addresses = dict(zip(names, files.field("pack").to_pylist(), strict=True))
    found = {}
    for key, (places, values) in cells.items():
        # Only files have such a value: it has the id of the input and a hash of the contents.
        first = next((value for value in values if value is not None), None)
        if isinstance(first, str) and first in addresses:
            column = pa.array(
                [addresses.get(value) if isinstance(value, str) else None for value in values],
                pa.string(),
            )
            found[key] = _spread(column, places, count)
    return found


def _cells_of(
    rows: Sequence[Mapping[str, Any]], keys: _StepKeys
) -> tuple[dict[str, tuple[list[int], list[Any]]], pa.Array]:
    """Divide rows into cells. The time depends on the number of cells, not of rows and columns.

    Returns:
        The row numbers and the values of each key that becomes a column. For each row, the other
        keys and their values as a JSON object, null without other keys.
    """
    cells: dict[str, tuple[list[int], list[Any]]] = {}
    more: list[str | None] = [None] * len(rows)
    for number, row in enumerate(rows):
        others = {}
        for key, value in row.items():
            if key not in cells:
                if not keys.accept(key):
                    others[key] = value
                    continue
                cells[key] = ([], [])
            places, values = cells[key]
            places.append(number)
            values.append(value)
        if others:
            more[number] = _text(others)
    return cells, pa.array(more, pa.string())


def _spread(values: pa.Array, places: Sequence[int], count: int) -> pa.Array:
    """Return a column of `count` rows, with the values at their places and null elsewhere."""
    if len(values) == count:
        return values
    index = np.full(count, -1)
    index[places] = np.arange(len(places))
    return values.take(pa.array(index, mask=index < 0))


def _kinds(values: Sequence[Any]) -> dict[str, int]:
    """Return the place of the first value of each kind of value."""
    types = list(map(type, values))
    # Both kinds of numbers fit into one column.
    return {_KINDS[kind]: types.index(kind) for kind in set(types) & _KINDS.keys()}


def _warn_of_mixed_types(chunks: Sequence[_Chunk]) -> None:
    """Log a warning for each column that is text because its values have several kinds."""
    kinds: dict[str, dict[str, str]] = {}
    for chunk in chunks:
        for key, found in chunk.kinds.items():
            kinds[key] = {**found, **kinds.get(key, {})}
    for key, found in kinds.items():
        if len(found) > 1:
            examples = " and ".join(f"{kind} in {name}" for kind, name in [*found.items()][:2])
            logger.warning(
                "The column %s is text, because its values have several types: %s. Return one "
                "type, or declare the type of the rows.",
                *(key, examples),
            )


def without_lists(table: pa.Table) -> pa.Table:
    """Return a table for CSV, which has no lists: they become JSON text."""
    table = tensors_as_lists(table)
    for number, field in enumerate(table.schema):
        if pa.types.is_nested(field.type):
            table = table.set_column(number, field.name, _texts(table.column(number).to_pylist()))
    return table


def _typed(values: Sequence[Any]) -> pa.Array:
    """Return values as a column of the type that fits all of them, else as text."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {bool} or kinds <= {str} or kinds <= {float}:
        return pa.array(values)
    if kinds <= {int, float}:
        # A whole number may have more than 64 bits. Then the column becomes text.
        with suppress(OverflowError, pa.ArrowInvalid):
            return pa.array(values, pa.int64() if kinds == {int} else pa.float64())
    return _texts(values)


def _texts(values: Iterable[Any]) -> pa.Array:
    return pa.array([_text(value) for value in values], pa.string())


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _column(name: str, chunks: Sequence[_Chunk]) -> pa.ChunkedArray | None:
    """Join a column of all chunks. Return None if no type other than text fits all values."""
    arrays = _arrays(name, chunks)
    types = {array.type for array in arrays} - {pa.null()}
    if len(types) <= 1:
        return _joined(arrays, types.pop() if types else pa.string())
    if all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in types):
        is_whole = all(pa.types.is_integer(kind) for kind in types)
        with suppress(pa.ArrowInvalid):  # A float cannot hold every whole number.
            return _joined(arrays, pa.int64() if is_whole else pa.float64())
    return None


def _arrays(name: str, chunks: Sequence[_Chunk]) -> list[_Column]:
    return [
        chunk.columns[name] if name in chunk.columns else pa.nulls(len(chunk.more))
        for chunk in chunks
    ]


def _joined(arrays: Sequence[_Column], kind: pa.DataType) -> pa.ChunkedArray:
    parts = [array.cast(kind) for array in arrays]
    return pa.chunked_array(
        [
            chunk
            for part in parts
            for chunk in (part.chunks if isinstance(part, pa.ChunkedArray) else [part])
        ],
        kind,
    )
