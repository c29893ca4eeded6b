"""Tables that may be larger than the memory.

A large table is mapped from a temporary file without a name. The kernel keeps as much of it in
memory as there is room, and removes it when the process ends, also when it is killed.
"""

import mmap
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import IO, Any, TypeAlias
from weakref import ref

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchmill.errors import StoreError

# A table above this size is mapped from a file.
MAPPED_BYTES = 64 * 2**20
# The number of rows that are copied to the memory at a time.
SLICE_ROWS = 65_536
# About this size is joined in memory.
JOINED_BYTES = 64 * 2**20
_ON_DISK = os.path.join(os.sep, "var", "tmp")

# The files of the tables of this process.
_maps: list[ref[mmap.mmap]] = []

Column: TypeAlias = pa.Array | pa.ChunkedArray


def collected(tables: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    """Return the rows of several tables as one table, which is mapped if it is large.

    Args:
        tables: The tables. Each is needed only until the next one.
        schema: The schema of all of them.

    Raises:
        StoreError: The temporary folder is full.
    """
    return pa.concat_tables([schema.empty_table(), *kept(tables)])


def collected_texts(texts: Iterable[str]) -> pa.ChunkedArray:
    """Return texts as a column, which is mapped if it is large."""
    schema, rest = pa.schema([("text", pa.string())]), iter(texts)
    parts = iter(lambda: [*islice(rest, SLICE_ROWS)], [])
    return collected((pa.table([part], schema=schema) for part in parts), schema)["text"]


def kept(tables: Iterable[pa.Table]) -> list[pa.Table]:
    """Return tables with any schemas. They are mapped if they are large together.

    Raises:
        StoreError: The temporary folder is full.
    """
    held: list[pa.Table] = []
    size, rest = 0, iter(tables)
    for table in rest:
        held.append(table)
        size += table.nbytes
        if size > MAPPED_BYTES:
            return _mapped(held, rest)
    return held


def _mapped(first: list[pa.Table], rest: Iterable[pa.Table]) -> list[pa.Table]:
    folder = disk_folder()
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            ends = [0]
            while first:
                ends.append(_write(file, first.pop(0)))
            ends.extend(_write(file, table) for table in rest)
            file.flush()
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    except OSError as error:
        raise StoreError(
            folder,
            f"{os.strerror(error.errno or 0)}. Large tables need this temporary folder. Set TMPDIR "
            "to another folder.",
            general=True,
        ) from error
    _release_memory()
    _maps.append(ref(mapped, _maps.remove))
    content = pa.py_buffer(mapped)
    parts = [content.slice(start, end - start) for start, end in pairwise(ends)]
    return [pa.ipc.open_stream(part).read_all() for part in parts]


def _write(file: IO[bytes], table: pa.Table) -> int:
    """Write a table as a stream at the end of a file, and return the end of the file."""
    with pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    return file.tell()


def _release_memory() -> None:
    """Return unused memory to the kernel, also the pages of tables, which it has in its cache."""
    for one in _maps:
        found = one()
        if found is not None:
            found.madvise(mmap.MADV_DONTNEED)
    pa.default_memory_pool().release_unused()


def disk_folder() -> str:
    """Return the folder of large files: `/var/tmp`, because `/tmp` is in memory on many systems."""
    is_chosen = any(os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    has_other = not is_chosen and os.access(_ON_DISK, os.W_OK)
    return _ON_DISK if has_other else tempfile.gettempdir()


def slices(table: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows of a table, some at a time."""
    for start in range(0, len(table), SLICE_ROWS):
        yield table.slice(start, SLICE_ROWS)


def select(table: pa.Table, mask: Column | np.ndarray) -> pa.Table:
    """Return the rows for which a mask is true. A large result is mapped."""
    chosen = pa.array(mask) if isinstance(mask, np.ndarray) else mask
    parts = (
        part.filter(chosen.slice(number * SLICE_ROWS, SLICE_ROWS))
        for number, part in enumerate(slices(table))
    )
    return collected(parts, table.schema)


def take(table: pa.Table, rows: pa.Array) -> pa.Table:
    """Return some rows of a table, in this order. A large result is mapped.

    pyarrow would join the chunks of the whole table for each slice of the rows. That takes
    quadratic time, and fails for more than 2 GiB of text.

    Args:
        table: The table.
        rows: The numbers of the rows. Null gives a row of nulls.
    """
    batches = table.to_batches()
    if not batches:  # It has no rows, or no columns.
        return table.take(rows) if table.num_columns else table
    starts = np.cumsum([0, *map(len, batches)])[:-1]
    count = min(SLICE_ROWS, 1 + JOINED_BYTES * len(table) // (1 + table.nbytes))
    parts = (
        _taken(table.schema, batches, starts, rows.slice(start, count))
        for start in range(0, len(rows), count)
    )
    return collected(parts, table.schema)


def _taken(
    schema: pa.Schema, batches: Sequence[pa.RecordBatch], starts: np.ndarray, rows: pa.Array
) -> pa.Table:
    wanted = rows.drop_null().to_numpy()
    number = np.searchsorted(starts, wanted, side="right") - 1
    order = np.argsort(number, kind="stable")
    numbers, first = np.unique(number[order], return_index=True)
    pieces = [
        batches[batch].take(pa.array(wanted[places] - starts[batch]))
        for batch, places in zip(numbers, np.split(order, first[1:]), strict=len(numbers) > 0)
    ]
    place = np.full(len(rows), -1)
    place[np.flatnonzero(np.asarray(rows.is_valid()))[order]] = np.arange(len(order))
    joined = pa.Table.from_batches(pieces, schema).combine_chunks()
    return joined.take(pa.array(place, mask=place < 0))


def take_values(column: Column, rows: np.ndarray) -> pa.ChunkedArray:
    """Return some values of a column, in this order."""
    return take(pa.table([column], ["values"]), pa.array(rows))["values"]


def with_column(table: pa.Table, name: str, values: Any) -> pa.Table:
    """Return a table with other values in a column: a column, or one value for all rows."""
    place = table.schema.get_field_index(name)
    kind = table.schema.field(name).type
    if not isinstance(values, pa.Array | pa.ChunkedArray):
        values = pa.repeat(pa.scalar(values, kind), len(table))
    return table.set_column(place, table.schema.field(place), values.cast(kind))


def count_values(column: Column) -> Counter[Any]:
    """Return how often each value occurs, also null."""
    return Counter({row["values"]: row["counts"] for row in pc.value_counts(column).to_pylist()})
