"""Publish a dataset's tables if its records or its manifest changed."""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchmill.digests import digest
from batchmill.layout import FAILURES_CSV, METADATA, PUBLISHED, RELEASED
from batchmill.ledger.ledger import Ledger
from batchmill.ledger.published_tables import PublishedRecord, read_published_record
from batchmill.ledger.versions import Version
from batchmill.manifest import Manifest
from batchmill.partitions.record import name_of_last
from batchmill.planning.run_spec import RunSpec, read_spec
from batchmill.publishing.table_check import check_table
from batchmill.publishing.tables import make_tables, write_tables
from batchmill.storage.fingerprints import HashingFile
from batchmill.storage.large_tables import slices
from batchmill.version import VERSION


def publish_changes(ledger: Ledger, manifest: Manifest) -> str:
    """Publish the tables of a dataset, unless they are up to date or break an expectation.

    Returns:
        Why the last run may not publish its tables. Then the published tables stay as they are.
        Empty if the tables are up to date now.
    """
    store = ledger.store
    run = max(ledger.runs(), default=0)
    spec = read_spec(ledger, run)
    made_of = _made_of(ledger, manifest, spec.declared)
    before = read_published_record(store)
    if before and before.made_of == made_of and before.matches(store):
        # The expectations of this run may be others.
        reason = ""
        if spec.policy.expect:
            with store.open(METADATA) as file:
                reason = check_table(pq.read_table(file), spec, ledger)
        if not reason and before.run != run:
            # An earlier run was killed, or published nothing. This run has checked its files.
            replace(before, run=run).write(store)
        return reason
    made = make_tables(ledger, manifest, spec.declared)
    reason = check_table(made.metadata, spec, ledger)
    if reason:
        return reason
    # The record is deleted first. If the process stops now, the next run publishes again.
    if before:
        store.delete(PUBLISHED)
    tables = write_tables(store, made)
    _add_version(ledger, spec, tables)
    PublishedRecord(run=run, made_of=made_of, tables=tables).write(store)
    return ""


def _add_version(ledger: Ledger, spec: RunSpec, tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Record the published tables as a version, unless they are those of the last version."""
    version = Version(
        number=spec.run,
        created=time.time(),
        rows=tables[METADATA]["rows"],
        failed=tables[FAILURES_CSV]["rows"],
        step=spec.identity,
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
    with ThreadPoolExecutor(ledger.store.threads) as pool:
        last = pool.submit(name_of_last, ledger)
        released = pool.submit(ledger.store.names, RELEASED)
        state = [*ledger.part_names(), *released.result(), *filter(None, [last.result()])]
    types = [f"{name}:{kind}" for name, kind in declared.items()]
    return digest("tables", VERSION, *state, _hash(table), *types)


def _hash(table: pa.Table) -> str:
    file = HashingFile()
    with pa.ipc.new_stream(file, table.schema) as writer:
        # The rows are taken, because the hash must not depend on the chunks of the table.
        for part in slices(table):
            writer.write_table(part.take(pa.array(range(len(part)))).combine_chunks())
    return file.content
