"""Search for names in columns of millions of names, by their hashes.

pyarrow's own functions make a table of all names in memory, of 100 bytes for each.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64_intdigest

from batchmill.core.storage.large_tables import SLICE_ROWS, Column, take_values


def rows_of(names: Column, values: Column) -> pa.Array:
    """Return the first row of `values` with each name; null for a name that is not there.

    It is `pyarrow.compute.index_in` with a sixth of the memory: it compares hashes, and then the
    names that they lead to.
    """
    hashes = _hashes(values)
    order = np.argsort(hashes, kind="stable")
    hashes.sort()
    rows = np.full(len(names), -1, np.int64)
    unclear: list[int] = []
    for start in range(0, len(names) if len(values) else 0, SLICE_ROWS):
        part = names.slice(start, SLICE_ROWS)
        wanted = _hashes(part)
        place = np.minimum(_search(hashes, wanted), len(hashes) - 1)
        matches = np.flatnonzero(hashes[place] == wanted)
        row = order[place[matches]]
        is_equal = pc.equal(take_values(values, row), part.take(pa.array(matches)))
        is_equal = np.asarray(is_equal.fill_null(False))
        rows[start + matches[is_equal]] = row[is_equal]
        unclear += (start + matches[~is_equal]).tolist()
    if unclear:  # Different names have the same hash.
        _search_exactly(names, values, np.array(unclear), rows)
    return pa.array(rows, mask=rows < 0)


def _search(hashes: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return where each of some hashes is in a sorted array. Sorted hashes are found faster."""
    order = np.argsort(wanted)
    place = np.empty(len(wanted), np.int64)
    place[order] = np.searchsorted(hashes, wanted[order])
    return place


def _search_exactly(names: Column, values: Column, unclear: np.ndarray, rows: np.ndarray) -> None:
    few = names.take(pa.array(unclear))
    texts = few.combine_chunks() if isinstance(few, pa.ChunkedArray) else few
    # `values` is long, so it is searched for the few names, and not the other way round.
    candidates = pa.array(np.flatnonzero(np.asarray(pc.is_in(values, value_set=texts))))
    first = pc.index_in(texts, value_set=values.take(candidates))
    rows[unclear] = candidates.take(first).fill_null(-1).to_numpy()


def repeated(names: Column) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows whose name occurs more than once, and a number for each.

    Rows with the same name have the same number. They are next to each other, in their order.
    """
    hashes = _hashes(names)
    hashes.sort()
    if not (hashes[1:] == hashes[:-1]).any():  # This is the usual case.
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    hashes = _hashes(names)
    order = np.argsort(hashes, kind="stable")
    hashes = hashes[order]
    is_same = hashes[1:] == hashes[:-1]
    is_repeated = np.append(False, is_same) | np.append(is_same, False)
    rows, hashes = order[is_repeated], hashes[is_repeated]
    numbers = np.cumsum(np.append(False, hashes[1:] != hashes[:-1]))
    if ((numbers[1:] == numbers[:-1]) & ~_equal_to_the_one_before(names, rows)).any():
        return _numbered_exactly(names, rows)  # Different names have the same hash.
    return rows, numbers


def _equal_to_the_one_before(names: Column, rows: np.ndarray) -> np.ndarray:
    """Return for each row but the first whether its name is that of the row before it."""
    found = [np.zeros(0, bool)]
    for start in range(0, len(rows) - 1, SLICE_ROWS):
        texts = take_values(names, rows[start : start + SLICE_ROWS + 1])
        found.append(np.asarray(pc.equal(texts[1:], texts[:-1]).fill_null(False)))
    return np.concatenate(found)


def _numbered_exactly(names: Column, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    texts = names.take(pa.array(rows))
    numbers = pc.index_in(texts, value_set=pc.unique(texts)).to_numpy()
    is_shared = np.bincount(numbers)[numbers] > 1
    rows, numbers = rows[is_shared], numbers[is_shared]
    order = np.lexsort((rows, numbers))
    return rows[order], numbers[order]


def _hashes(names: Column) -> np.ndarray:
    """Return a hash of each name. Null has that of an empty name."""
    found = np.zeros(len(names), np.uint64)
    for start in range(0, len(names), SLICE_ROWS):
        texts = names.slice(start, SLICE_ROWS).cast(pa.large_binary()).fill_null(b"").to_pylist()
        found[start : start + len(texts)] = [*map(xxh3_64_intdigest, texts)]
    return found
