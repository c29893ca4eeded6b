"""The outcomes of a run: of several records of an input, one counts."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core.ledger.parts import read_parts, schema_of
from batchmill.core.ledger.state import COPIED, LIBRARIES, OK, STATE_SCHEMA, State
from batchmill.core.storage import Store
from batchmill.core.storage.large_tables import collected, select
from batchmill.core.storage.name_search import repeated


def outcomes_in(store: Store, parts: Sequence[str]) -> State:
    """Return the outcomes in the parts of one run.

    If an input has several, an `ok` one wins: the attempt on a node that was counted as lost may
    fail after another attempt has succeeded. Then the one of the latest attempt at the shard wins,
    then that of the last part. No clock decides.

    Raises the errors of `read_part`.
    """
    read = schema_of([*COPIED, "attempt"])
    schema = pa.schema([*read, *(STATE_SCHEMA.field(name) for name in ("part", "row", LIBRARIES))])
    sets: dict[str, int] = {}

    def numbered() -> Iterator[pa.Table]:
        for number, table in enumerate(read_parts(store, parts, [*read.names, LIBRARIES])):
            columns = [
                np.full(len(table), number, np.int32),
                np.arange(len(table), dtype=np.int32),
                _numbers(table[LIBRARIES], sets),
            ]
            yield pa.table([*table.select(read.names).columns, *columns], schema=schema)

    records = collected(numbered(), schema)
    records = select(records, _last_ones(records))
    columns = [
        records[field.name] if field.name in schema.names else pa.nulls(len(records), field.type)
        for field in STATE_SCHEMA
    ]
    return State(store, pa.table(columns, schema=STATE_SCHEMA), parts, libraries=[*sets])


def _numbers(texts: pa.ChunkedArray, numbers: dict[str, int]) -> pa.Array:
    """Return the number of each text. New texts get the next numbers."""
    encoded = texts.unify_dictionaries().combine_chunks()
    mapped = [numbers.setdefault(text, len(numbers)) for text in encoded.dictionary.to_pylist()]
    return pa.array(mapped, pa.int32()).take(encoded.indices)


def _last_ones(records: pa.Table) -> np.ndarray:
    """Return which records of a run count: one of each input."""
    rows, numbers = repeated(records["input"])
    wins = np.ones(len(records), bool)
    if not len(rows):
        return wins
    repeats = records.select(["outcome", "attempt"]).take(pa.array(rows))
    is_ok = np.asarray(pc.equal(repeats["outcome"], OK))
    # The last key is the most important one.
    order = np.lexsort((rows, repeats["attempt"].to_numpy(), is_ok, numbers))
    is_last = np.append(np.diff(numbers[order]) != 0, True)
    wins[rows] = False
    wins[rows[order[is_last]]] = True
    return wins
