"""Merges the many small parts of a state into few.

The state then refers to the merged parts. Earlier snapshots refer to the old ones, which stay as
long as these do.
"""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core.layout import MERGED, PARTS
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.parts import PART_SCHEMA, read_part, read_parts, write_hashed
from batchmill.core.ledger.state import PLACES, State, result_places
from batchmill.core.storage.large_tables import with_column

# Reading a part takes a millisecond, so a dataset with this number opens in half a second.
MANY_PARTS = 500
# Merged parts have about this size in memory. An Arrow array holds at most 2 GiB of text.
_MERGED_BYTES = 64 * 2**20
# A place is one number: part and row.
_ROW = 0xFFFFFFFF


def with_merged_parts(ledger: Ledger, state: State, run: int, many: int = MANY_PARTS) -> State:
    """Return a state that refers to few parts. Below `many` small parts, it is the same object.

    Args:
        ledger: The ledger. The merged parts are written to it.
        state: The state.
        run: The number of the run that merges them.
        many: The least number of parts to merge.

    Raises:
        LedgerError: A part is damaged, also a merged one.
        StoreError: A part cannot be read or written.
    """
    used = state.used()
    named = used.named_parts
    small = [
        number
        for number, name in enumerate(used.parts)
        if name in named and not name.startswith(MERGED)
    ]
    if len(small) < many:
        return state
    keys = np.unique(np.concatenate([_keys(used.table, *pair)[0] for pair in PLACES[:2]]))
    new_parts, new_rows = (keys >> 32).astype(np.int32), (keys & _ROW).astype(np.int32)
    tables = read_parts(ledger.unchanging, [used.parts[n] for n in small], PART_SCHEMA.names)
    merged: list[str] = []
    waiting: list[pa.Table] = []
    count = 0
    for number, table in zip(small, tables, strict=True):
        span = slice(*np.searchsorted(keys, np.array([number, number + 1], np.int64) << 32))
        waiting.append(table.take(pa.array(keys[span] & _ROW)))
        new_parts[span] = len(used.parts) + len(merged)
        new_rows[span] = count + np.arange(len(waiting[-1]))
        count += len(waiting[-1])
        if sum(chunk.nbytes for chunk in waiting) >= _MERGED_BYTES or number == small[-1]:
            part = pa.concat_tables(waiting).cast(PART_SCHEMA)
            name = write_hashed(ledger.store, f"{PARTS}/{MERGED}{run:06d}-{len(merged):05d}", part)
            read_part(ledger.store, name, ["input"])  # The old parts may be removed later.
            merged.append(name.rpartition("/")[2])
            waiting, count = [], 0
    table = used.table
    for column, values in zip(PLACES[2], result_places(table), strict=True):
        table = with_column(table, column, pc.coalesce(table[column], values))
    for pair in PLACES[:2]:
        own_keys, is_valid = _keys(table, *pair)
        place = np.searchsorted(keys, own_keys)
        for name, new in zip(pair, (new_parts, new_rows), strict=True):
            values = np.zeros(len(table), np.int32)
            values[is_valid] = new[place]
            table = with_column(table, name, pa.array(values, mask=~is_valid))
    return replace(used, table=table, parts=[*used.parts, *merged], file=None).used()


def _keys(table: pa.Table, part: str, row: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a number for each valid place of a record, and which places are valid."""
    is_valid = np.asarray(table[part].is_valid())
    parts, rows = (table[name].drop_null().to_numpy().astype(np.int64) for name in (part, row))
    return (parts << 32) | rows, is_valid
