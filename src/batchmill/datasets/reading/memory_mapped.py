"""A table in a local file that all processes map into memory and share.

A Python list of ten million paths would use its memory again in each DataLoader worker. A spawned
worker receives a copy. A forked worker copies the pages when Python updates reference counts.
"""

import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from batchmill.core.storage.large_tables import disk_folder
from batchmill.core.storage.local import remove_folder
from batchmill.core.storage.scratch import lock_scratch_folder
from batchmill.errors import StoreError

_NAME = "samples.arrow"
_ARRAYS = (pa.FixedSizeListArray, pa.FixedShapeTensorArray)


class MappedTable:
    """A table that is pickled as the path of its file, and mapped again when unpickled.

    If the file does not exist (another machine, or the owner has exited), `make` creates the table
    again. The file is removed with its last owner in the process that wrote it.
    """

    def __init__(self, path: str, make: Callable[[], pa.Table]) -> None:
        self._path = path
        self._make = make
        with pa.ipc.open_file(pa.memory_map(path)) as source:
            batch = source.get_batch(0)
        self.names: list[str] = batch.schema.names
        self._columns = batch.columns
        # The rows of a dictionary column hold indices.
        self._values = [getattr(column, "indices", column) for column in batch.columns]
        self._rows: int = batch.num_rows
        _mapped[path] = self

    def __len__(self) -> int:
        return self._rows

    def row(self, index: int) -> list[Any]:
        """Return the values of a row. Raises IndexError after the last row.

        A vector or tensor is a numpy array.
        """
        return [
            _array(column[index]) if isinstance(column, _ARRAYS) else column[index].as_py()
            for column in self._values
        ]

    def dictionary(self, name: str) -> list[str]:
        """Return the values of a dictionary column. Empty for another column."""
        column = self._columns[self.names.index(name)] if name in self.names else None
        return list(column.dictionary.to_pylist()) if isinstance(column, pa.DictionaryArray) else []

    def __reduce__(self) -> tuple[Any, ...]:
        return _map_again, (self._path, self._make)


# Unpickling in the same process returns the same table, so both share one file.
_mapped: weakref.WeakValueDictionary[str, MappedTable] = weakref.WeakValueDictionary()


def map_table(table: pa.Table, make: Callable[[], pa.Table]) -> MappedTable:
    """Write a table to a temporary file and map it. `make` returns the same table again."""
    folder, descriptor = lock_scratch_folder(base=Path(disk_folder()))
    path = str(folder / _NAME)
    try:
        _write(table, path)
        mapped = MappedTable(path, make)
    except BaseException:
        _give_up(str(folder), descriptor, os.getpid())
        raise
    weakref.finalize(mapped, _give_up, str(folder), descriptor, os.getpid())
    # Memory used for reading is released before workers are forked.
    pa.default_memory_pool().release_unused()
    return mapped


def _write(table: pa.Table, path: str) -> None:
    columns = [column.combine_chunks() for column in table.columns]
    # One batch, because a lookup in a chunked column would have to find its chunk.
    batch = pa.RecordBatch.from_arrays(columns, names=table.column_names)
    try:
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
            writer.write_batch(batch)
    except OSError as error:
        raise StoreError(
            path,
            f"{error}. Free some space, or set TMPDIR to another temporary folder.",
            general=True,
        ) from error


def _map_again(path: str, make: Callable[[], pa.Table]) -> MappedTable:
    known = _mapped.get(path)
    if known is not None:
        return known
    try:
        return MappedTable(path, make)
    except OSError:  # The file does not exist, or belongs to another user.
        return map_table(make(), make)


def _array(scalar: Any) -> np.ndarray:
    """Return a copy of a vector or a tensor, because torch needs an array that it may change."""
    values = scalar if isinstance(scalar, pa.FixedShapeTensorScalar) else scalar.values
    copy: np.ndarray = values.to_numpy().copy()
    return copy


def _give_up(folder: str, descriptor: int, owner: int) -> None:
    """Remove the file, unless this process is a fork of its owner."""
    if os.getpid() == owner:
        remove_folder(folder)
        os.close(descriptor)
