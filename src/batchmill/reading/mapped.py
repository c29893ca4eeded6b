"""A table in a file of this machine, which all processes map and none copies.

A dataset with a list of ten million paths costs each DataLoader worker as much as its parent: a
spawned one gets a copy, a forked one makes it, because Python counts references in the objects.
"""

import os
import weakref
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from batchmill.errors import StoreError
from batchmill.storage.local import remove_folder
from batchmill.storage.scratch import lock_scratch_folder

_NAME = "samples.arrow"


class MappedTable:
    """A table that is pickled as the path of its file, and mapped where it is unpickled.

    Where there is no such file (another machine, or its owner is gone), `make` makes the table
    again. The file goes with the last owner in the process that has written it.
    """

    def __init__(self, path: str, make: Callable[[], pa.Table]) -> None:
        self._path = path
        self._make = make
        with pa.ipc.open_file(pa.memory_map(path)) as source:
            batch = source.get_batch(0)
        self.names: list[str] = batch.schema.names
        self._columns = batch.columns
        # Of a dictionary column, the rows have indices.
        self._values = [getattr(column, "indices", column) for column in batch.columns]
        self._rows: int = batch.num_rows
        _mapped[path] = self

    def __len__(self) -> int:
        return self._rows

    def row(self, index: int) -> list[Any]:
        """Return the values of a row. Raises IndexError beyond the last."""
        return [column[index].as_py() for column in self._values]

    def dictionary(self, name: str) -> list[str]:
        """Return what a column's indices mean; of one that has none, nothing."""
        column = self._columns[self.names.index(name)] if name in self.names else None
        return list(column.dictionary.to_pylist()) if isinstance(column, pa.DictionaryArray) else []

    def __reduce__(self) -> tuple[Any, ...]:
        return _map_again, (self._path, self._make)


# Within a process, what is unpickled is what was pickled: another owner of the same file.
_mapped: weakref.WeakValueDictionary[str, MappedTable] = weakref.WeakValueDictionary()


def map_table(table: pa.Table, make: Callable[[], pa.Table]) -> MappedTable:
    """Write a table to a temporary file and map it; `make` gives the same table again."""
    folder, descriptor = lock_scratch_folder()
    path = str(folder / _NAME)
    try:
        _write(table, path)
        mapped = MappedTable(path, make)
    except BaseException:
        _give_up(str(folder), descriptor, os.getpid())
        raise
    weakref.finalize(mapped, _give_up, str(folder), descriptor, os.getpid())
    # What reading took is given back before workers are forked.
    pa.default_memory_pool().release_unused()
    return mapped


def _write(table: pa.Table, path: str) -> None:
    columns = [column.combine_chunks() for column in table.columns]
    # One batch: in a chunked column, each look-up would search for its chunk.
    batch = pa.RecordBatch.from_arrays(columns, names=table.column_names)
    try:
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
            writer.write_batch(batch)
    except OSError as error:
        raise StoreError(
            path, f"{error}. Make room, or name another temporary folder with TMPDIR.", general=True
        ) from error


def _map_again(path: str, make: Callable[[], pa.Table]) -> MappedTable:
    known = _mapped.get(path)
    if known is not None:
        return known
    try:
        return MappedTable(path, make)
    except OSError:  # Not there, or another user's.
        return map_table(make(), make)


def _give_up(folder: str, descriptor: int, owner: int) -> None:
    """Remove the file, unless this is a fork of its owner."""
    if os.getpid() == owner:
        remove_folder(folder)
        os.close(descriptor)
