"""Publishes a dataset's tables, unless they are there already, of the same records and manifest."""

import json
from typing import Any

import pyarrow as pa
import xxhash

from batchmill.digests import digest
from batchmill.ledger.ledger import FOLDER, Ledger
from batchmill.manifest import Manifest
from batchmill.publishing.tables import TABLES, publish
from batchmill.version import VERSION

_RECORD = f"{FOLDER}/published.json"


def publish_changes(ledger: Ledger, manifest: Manifest) -> None:
    """Publish the tables of what the ledger holds; does nothing if that has been done."""
    store = ledger.store
    made_of = _made_of(ledger, manifest)
    if _recorded(ledger) == {"made_of": made_of, "bytes": _bytes(ledger)}:
        return
    # First: should this be the last thing that is done, the tables are of no known state.
    store.delete(_RECORD)
    publish(ledger, manifest)
    record = {"made_of": made_of, "bytes": _bytes(ledger)}
    store.write(_RECORD, json.dumps(record, indent=2).encode())


def _made_of(ledger: Ledger, manifest: Manifest) -> str:
    """Name what the tables are made of, by a hash."""
    columns = [manifest.inputs["input"], *manifest.manifest_columns.columns]
    names = ["the input", *manifest.manifest_columns.column_names]
    if manifest.partition is not None:
        columns, names = [*columns, manifest.partition], [*names, "its partition"]
    table = pa.Table.from_arrays(columns, names)
    return digest("tables", VERSION, *ledger.state(), _hash(table))


def _hash(table: pa.Table) -> str:
    state = xxhash.xxh3_128()
    with pa.ipc.new_stream(_Sink(state), table.schema) as writer:
        # In one piece: how a column is divided must not tell.
        writer.write_table(table.combine_chunks())
    return state.hexdigest()


class _Sink:
    """A file that hashes what is written to it."""

    closed = False

    def __init__(self, state: Any) -> None:
        self._state = state

    def write(self, data: Any) -> int:
        self._state.update(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing: nothing waits."""


def _recorded(ledger: Ledger) -> Any:
    if not ledger.store.exists(_RECORD):
        return None
    try:
        return json.loads(ledger.store.read(_RECORD))
    except ValueError:
        return None


def _bytes(ledger: Ledger) -> list[int | None]:
    return list(ledger.store.sizes(TABLES))
