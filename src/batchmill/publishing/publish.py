"""Publish a dataset's tables if its records or its manifest changed."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from batchmill.digests import digest
from batchmill.layout import FAILURES_CSV, METADATA, PUBLISHED, RELEASED
from batchmill.ledger.ledger import Ledger
from batchmill.ledger.published_record import PublishedRecord, read_published_record
from batchmill.ledger.versions import Version
from batchmill.manifest import Manifest
from batchmill.partitions.record import name_of_last
from batchmill.planning.run_spec import read_spec
from batchmill.publishing.tables import publish
from batchmill.storage.fingerprints import HashingFile
from batchmill.version import VERSION


def publish_changes(ledger: Ledger, manifest: Manifest) -> None:
    """Publish the tables of a dataset, unless they are up to date."""
    store = ledger.store
    run = max(ledger.runs(), default=0)
    declared = read_spec(ledger, run).declared
    made_of = _made_of(ledger, manifest, declared)
    before = read_published_record(store)
    if before and before.made_of == made_of and before.matches(store):
        if before.run != run:  # An earlier run was killed. This run has checked its files.
            replace(before, run=run).write(store)
        return
    # The record is deleted first. If the process stops now, the next run publishes again.
    store.delete(PUBLISHED)
    tables = {name: table._asdict() for name, table in publish(ledger, manifest, declared).items()}
    _add_version(ledger, run, tables)
    PublishedRecord(run=run, made_of=made_of, tables=tables).write(store)


def _add_version(ledger: Ledger, run: int, tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Record the published tables as a version, unless they are those of the last version."""
    version = Version(
        number=run,
        created=time.time(),
        rows=tables[METADATA]["rows"],
        failed=tables[FAILURES_CSV]["rows"],
        step=read_spec(ledger, run).identity,
        table=tables[METADATA]["content"],
    )
    last = ledger.versions.read_all()[-1:]
    if [(one.table, one.failed) for one in last] != [(version.table, version.failed)]:
        ledger.versions.add(version, METADATA)


def _made_of(ledger: Ledger, manifest: Manifest, declared: Mapping[str, str]) -> str:
    """Return a hash of everything that the tables depend on."""
    columns = [manifest.inputs["input"], *manifest.manifest_columns.columns]
    names = ["the input", *manifest.manifest_columns.column_names]
    if manifest.partition is not None:
        columns, names = [*columns, manifest.partition], [*names, "its partition"]
    table = pa.Table.from_arrays(columns, names)
    # The run deletes earlier assignments after the publication.
    last = name_of_last(ledger)
    state = [*ledger.part_names(), *ledger.store.names(RELEASED), *([last] if last else [])]
    types = [f"{name}:{kind}" for name, kind in declared.items()]
    return digest("tables", VERSION, *state, _hash(table), *types)


def _hash(table: pa.Table) -> str:
    file = HashingFile()
    with pa.ipc.new_stream(file, table.schema) as writer:
        # The chunks are combined, because the hash must not depend on them.
        writer.write_table(table.combine_chunks())
    return file.content
