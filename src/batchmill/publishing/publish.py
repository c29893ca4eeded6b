"""Publish a dataset's tables if its records or its manifest changed."""

import json
from contextlib import suppress
from typing import Any

import pyarrow as pa
import xxhash

from batchmill.digests import digest
from batchmill.ledger.ledger import FOLDER, Ledger
from batchmill.maintenance.verify import TABLES
from batchmill.manifest import Manifest
from batchmill.publishing.tables import publish
from batchmill.version import VERSION

_RECORD = f"{FOLDER}/published.json"


def publish_changes(ledger: Ledger, manifest: Manifest) -> None:
    """Publish the tables of a dataset, unless they are up to date."""
    store = ledger.store
    made_of = _made_of(ledger, manifest)
    if _recorded(ledger) == {"made_of": made_of, "bytes": _bytes(ledger)}:
        return
    # The record is deleted first. If the process stops now, the next run publishes again.
    store.delete(_RECORD)
    publish(ledger, manifest)
    record = {"made_of": made_of, "bytes": _bytes(ledger)}
    store.write(_RECORD, json.dumps(record, indent=2).encode())


def _made_of(ledger: Ledger, manifest: Manifest) -> str:
    """Return a hash of everything that the tables depend on."""
    columns = [manifest.inputs["input"], *manifest.manifest_columns.columns]
    names = ["the input", *manifest.manifest_columns.column_names]
    if manifest.partition is not None:
        columns, names = [*columns, manifest.partition], [*names, "its partition"]
    table = pa.Table.from_arrays(columns, names)
    return digest("tables", VERSION, *ledger.state(), _hash(table))


def _hash(table: pa.Table) -> str:
    state = xxhash.xxh3_128()
    with pa.ipc.new_stream(_Sink(state), table.schema) as writer:
        # The chunks are combined, because the hash must not depend on them.
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
        """Do nothing. Arrow requires this method."""


def _recorded(ledger: Ledger) -> Any:
    with suppress(ValueError):
        return json.loads(ledger.store.read(_RECORD)) if ledger.store.exists(_RECORD) else None
    return None


def _bytes(ledger: Ledger) -> list[int | None]:
    return list(ledger.store.sizes(TABLES))
