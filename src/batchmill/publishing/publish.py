"""Publish a dataset's tables if its records or its manifest changed."""

import json
from contextlib import suppress
from typing import Any

import pyarrow as pa

from batchmill.digests import digest
from batchmill.ledger.ledger import Ledger
from batchmill.maintenance.verify import PUBLISHED, TABLES, published_tables
from batchmill.manifest import Manifest
from batchmill.publishing.tables import publish
from batchmill.storage.fingerprints import HashingFile
from batchmill.version import VERSION


def publish_changes(ledger: Ledger, manifest: Manifest) -> None:
    """Publish the tables of a dataset, unless they are up to date."""
    store = ledger.store
    made_of = _made_of(ledger, manifest)
    sizes = dict(zip(TABLES, store.sizes(TABLES), strict=True))
    before = {name: table["size"] for name, table in published_tables(store).items()}
    if before == sizes and _recorded(ledger) == made_of:
        return
    # The record is deleted first. If the process stops now, the next run publishes again.
    store.delete(PUBLISHED)
    tables = publish(ledger, manifest)
    record = {
        "made_of": made_of,
        "tables": {name: table._asdict() for name, table in tables.items()},
    }
    store.write(PUBLISHED, json.dumps(record, indent=2).encode())


def _made_of(ledger: Ledger, manifest: Manifest) -> str:
    """Return a hash of everything that the tables depend on."""
    columns = [manifest.inputs["input"], *manifest.manifest_columns.columns]
    names = ["the input", *manifest.manifest_columns.column_names]
    if manifest.partition is not None:
        columns, names = [*columns, manifest.partition], [*names, "its partition"]
    table = pa.Table.from_arrays(columns, names)
    return digest("tables", VERSION, *ledger.state(), _hash(table))


def _hash(table: pa.Table) -> str:
    file = HashingFile()
    with pa.ipc.new_stream(file, table.schema) as writer:
        # The chunks are combined, because the hash must not depend on them.
        writer.write_table(table.combine_chunks())
    return file.content


def _recorded(ledger: Ledger) -> Any:
    """Return the hash of everything that the published tables depend on; None if unknown."""
    with suppress(ValueError, KeyError, TypeError):
        return json.loads(ledger.store.read(PUBLISHED))["made_of"]
    return None
