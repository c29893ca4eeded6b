"""Make the metadata table of a dataset from the rows of its step.

Records are converted some at a time, to limit the memory. A chunk is a table with the rows of some
records: `more` has the keys above the limit as JSON objects, and `stale` is true for the rows of
earlier results. The columns with values have the prefix `value `. For each column of the step with
files, a column with the prefix `address ` has their addresses in packs, null for other files.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core.layout import MORE_COLUMNS, OUTPUT_COLUMN, PARTITION_COLUMN
from batchmill.core.ledger.table_metadata import TableMetadata
from batchmill.core.manifest import Manifest
from batchmill.core.manifest.arrow_columns import tensors_as_lists
from batchmill.core.storage.large_tables import Column, kept, take
from batchmill.datasets.publishing.declared_columns import as_declared, declared_array, is_open

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

_MORE, _VALUES, _ADDRESSES = "more", "value ", "address "

logger = logging.getLogger(__name__)


def metadata_table(
    records: pa.Table, manifest: Manifest, declared: Mapping[str, str], shown: Sequence[str] = ()
) -> pa.Table:
    """Return the metadata table.

    Args:
        records: The records with a result, in the order of the table. `position` is the record's
            row in the manifest, null if its file is too young. `result_run` is valid for an earlier
            result. `partition` is the input's partition. Without partitions, there is no such
            column.
        manifest: The manifest.
        declared: The Arrow type of each column that has one.
        shown: The step's keys that become columns. Empty: the first MAX_COLUMNS keys.
    """
    keys = {"output", *manifest.manifest_columns.column_names, *shown}
    limit = len(keys) + (0 if shown else MAX_COLUMNS)
    parts = list(_parts(records))
    kinds: dict[str, dict[str, str]] = {}
    chunks = kept(_chunk(part, manifest, keys, limit, declared, kinds) for part in parts)
    _warn_of_mixed_types(kinds)
    chunk_names = _names(chunks, _VALUES)
    names = dict.fromkeys(["input", *(["output"] if "output" in chunk_names else [])])
    manifest_names = manifest.manifest_columns.column_names
    if PARTITION_COLUMN in records.column_names and PARTITION_COLUMN not in manifest_names:
        names[PARTITION_COLUMN] = None
    names |= dict.fromkeys([*manifest_names, *chunk_names])
    columns = {name: _column(_parts_of(f"{_VALUES}{name}", chunks)) for name in names}
    columns |= {
        name: as_declared(columns[name], kind)
        for name, kind in declared.items()
        if columns.get(name)
    }
    mixed = frozenset(name for name, column in columns.items() if column is None)
    if mixed:
        # A typed chunk no longer has the text of a value: 1 and 1.0 are equal floats.
        again = (_chunk(part, manifest, keys, limit, {}, {}, mixed) for part in parts)
        # The other columns are left out, which limits the memory.
        needed = {_STALE, *(f"{_VALUES}{name}" for name in mixed)}
        as_texts = kept(chunk.select(sorted(needed & {*chunk.column_names})) for chunk in again)
        columns |= {name: _joined(f"{_VALUES}{name}", as_texts, pa.string()) for name in mixed}
    more = _joined(_MORE, chunks, pa.string())
    _add(columns, MORE_COLUMNS, more, more.is_valid())
    added: dict[str, str] = {}
    for name in _names(chunks, _ADDRESSES):
        packs = _joined(f"{_ADDRESSES}{name}", chunks, pa.string())
        pack_name = _PACK if name == OUTPUT_COLUMN else f"{name}_{_PACK}"
        column = _add(columns, pack_name, packs, packs.is_valid())
        if column or name != OUTPUT_COLUMN:
            added[name] = column
    stale = _joined(_STALE, chunks, pa.bool_())
    metadata = TableMetadata(stale=_add(columns, _STALE, stale, stale), packs=added)
    return pa.table(columns).replace_schema_metadata(metadata.as_arrow())


def _names(chunks: Sequence[pa.Table], prefix: str) -> dict[str, None]:
    """Return the names of the columns of chunks that have a prefix, in order, without it."""
    names = (name for chunk in chunks for name in chunk.column_names if name.startswith(prefix))
    return dict.fromkeys(name.removeprefix(prefix) for name in names)


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


def _add(
    columns: dict[str, pa.ChunkedArray], name: str, column: pa.ChunkedArray, used: pa.ChunkedArray
) -> str:
    """Add a column under a name that is free. Return the name; "" if no row has `used` it."""
    if not pc.any(used).as_py():
        return ""
    while name in columns:
        name += "_"
    columns[name] = column
    return name


def _chunk(
    records: pa.Table,
    manifest: Manifest,
    keys: set[str],
    limit: int,
    declared: Mapping[str, str],
    kinds: dict[str, dict[str, str]],
    mixed: frozenset[str] = frozenset(),
) -> pa.Table:
    """Return the metadata rows of some records as a chunk.

    The types of columns that are not `declared` fit these rows only. The columns `mixed` are text.
    For each column that is not declared, `kinds` gets an input for each kind of its values. `keys`
    gets the columns of these rows, up to `limit`.
    """
    # One call for all texts takes half the time of one for each.
    made: list[list[dict[str, Any]]] = json.loads(f"[{','.join(records['rows'].to_pylist())}]")
    rows = [row for of_input in made for row in of_input]
    owners = np.repeat(np.arange(len(made)), [*map(len, made)])
    owner = pa.array(owners, pa.int64())
    columns: dict[str, Column] = {"input": records["input"].take(owner)}
    place = records["position"].take(owner)
    manifest_rows = take(manifest.manifest_columns, place.combine_chunks())
    for name, column in zip(manifest_rows.column_names, manifest_rows.columns, strict=True):
        columns[name] = texts(column.to_pylist()) if name in mixed else column
    cells, more = _cells_of(rows, keys, limit)
    for key, (places, values) in cells.items():
        convert = texts if key in mixed else _typed
        if key in declared:
            convert = partial(declared_array, kind=declared[key], other=_typed)
        else:
            inputs = {
                kind: records["input"][owners[places[at]]].as_py()
                for kind, at in _kinds(values).items()
            }
            kinds[key] = {**inputs, **kinds.get(key, {})}
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
    files = _files(records["outputs"], cells, len(rows))
    return pa.table(
        {
            _MORE: more,
            _STALE: stale,
            **{f"{_VALUES}{name}": column for name, column in columns.items()},
            **{f"{_ADDRESSES}{name}": column for name, column in files.items()},
        }
    )


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
    columns = {}
    for key, (places, values) in cells.items():
        # Only files have such a value: it has the id of the input and a hash of the contents. A
        # row without a file may have another text, such as "".
        if addresses and any(isinstance(value, str) and value in addresses for value in values):
            column = pa.array(
                [addresses.get(value) if isinstance(value, str) else None for value in values],
                pa.string(),
            )
            columns[key] = _spread(column, places, count)
    return columns


def _cells_of(
    rows: Sequence[Mapping[str, Any]], keys: set[str], limit: int
) -> tuple[dict[str, tuple[list[int], list[Any]]], pa.Array]:
    """Divide rows into cells. The time depends on the number of cells, not of rows and columns.

    The first keys in the order of the table become columns: a new key is added to `keys` if these
    are fewer than `limit`.

    Returns:
        The row numbers and the values of each key that becomes a column. For each row, the other
        keys and their values as a JSON object, null without other keys.
    """
    cells: dict[str, tuple[list[int], list[Any]]] = {}
    more: list[str | None] = [None] * len(rows)
    first = rows[0].keys() if rows else set[str]()
    if len(keys | first) <= limit and all(row.keys() == first for row in rows):
        # Most steps return the same keys for each input.
        keys.update(first)
        places = [*range(len(rows))]
        cells = {key: (places, [row[key] for row in rows]) for key in first}
        rows = ()
    for number, row in enumerate(rows):
        others = {}
        for key, value in row.items():
            if key not in cells:
                if len(keys) < limit:
                    keys.add(key)
                if key not in keys:
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


def _warn_of_mixed_types(kinds: Mapping[str, Mapping[str, str]]) -> None:
    """Log a warning for each column that is text because its values have several kinds."""
    for key, inputs in kinds.items():
        if len(inputs) > 1:
            examples = " and ".join(f"{kind} in {name}" for kind, name in [*inputs.items()][:2])
            logger.warning(
                "The column %s is text, because its values have several types: %s. Return one "
                "type, or declare the type of the rows.",
                *(key, examples),
            )


def _typed(values: Sequence[Any]) -> pa.Array:
    """Return values as a column of the type that fits all of them, else as text."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {bool} or kinds <= {str} or kinds <= {float}:
        return pa.array(values)
    if kinds <= {int, float}:
        # A whole number may have more than 64 bits. Then the column becomes text.
        with suppress(OverflowError, pa.ArrowInvalid):
            return pa.array(values, pa.int64() if kinds == {int} else pa.float64())
    return texts(values)


def texts(values: Iterable[Any]) -> pa.Array:
    """Return values as a column of text. Lists and dicts become JSON."""
    return pa.array([_text(value) for value in values], pa.string())


def for_csv(table: pa.Table) -> pa.Table:
    """Return a table for CSV, which has no lists: they become JSON text.

    Readers reject the character NUL, so it becomes U+FFFD.
    """
    table = tensors_as_lists(table)
    for number, field in enumerate(table.schema):
        column = table.column(number)
        if pa.types.is_nested(field.type):
            table = table.set_column(number, field.name, texts(column.to_pylist()))
        elif pa.types.is_string(field.type) and pc.any(pc.match_substring(column, "\0")).as_py():
            column = pc.replace_substring(column, "\0", "\ufffd")
            table = table.set_column(number, field.name, column)
    return table


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, bool | int | float | list | dict):
        return str(value)  # A date of the manifest: in JSON, it would have quotes.
    return json.dumps(value, ensure_ascii=False, default=str)


def _column(parts: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray | None:
    """Join the parts of a column. Return None if no type other than text fits all values."""
    types = {part.type for part in parts} - {pa.null()}
    types = {kind for kind in types if not is_open(kind)} or types
    if len(types) <= 1:
        return _cast(parts, types.pop() if types else pa.string())
    if all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in types):
        is_whole = all(pa.types.is_integer(kind) for kind in types)
        with suppress(pa.ArrowInvalid):  # A float cannot hold every whole number.
            return _cast(parts, pa.int64() if is_whole else pa.float64())
    return None


def _joined(name: str, chunks: Sequence[pa.Table], kind: pa.DataType) -> pa.ChunkedArray:
    """Return a column of chunks, null in a chunk without it."""
    return _cast(_parts_of(name, chunks), kind)


def _parts_of(name: str, chunks: Sequence[pa.Table]) -> list[pa.ChunkedArray]:
    return [
        chunk[name] if name in chunk.column_names else pa.chunked_array([pa.nulls(len(chunk))])
        for chunk in chunks
    ]


def _cast(parts: Sequence[pa.ChunkedArray], kind: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array([array for part in parts for array in part.cast(kind).chunks], kind)
