"""Publish a dataset's tables if its records or its manifest changed.

They are metadata.parquet, metadata.csv and failures.csv.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from batchmill.digests import digest
from batchmill.layout import (
    FAILURES_CSV,
    METADATA,
    METADATA_CSV,
    PARTITION_COLUMN,
    PUBLISHED,
    RELEASED,
)
from batchmill.ledger.ledger import Ledger
from batchmill.ledger.parts import has_result
from batchmill.ledger.published_tables import PublishedRecord, read_published_record
from batchmill.ledger.versions import Version
from batchmill.manifest import Manifest
from batchmill.partitions.record import last_assignment, name_of_last
from batchmill.planning.run_spec import RunSpec, read_spec
from batchmill.publishing.failure_groups import read_failures
from batchmill.publishing.metadata_table import for_csv, metadata_table
from batchmill.publishing.table_check import check_table
from batchmill.storage import Store, in_threads
from batchmill.storage.fingerprints import HashingFile
from batchmill.storage.large_tables import slices, take
from batchmill.storage.name_search import rows_of
from batchmill.storage.store import write_and_hash
from batchmill.version import VERSION


class Tables(NamedTuple):
    """The tables of a dataset that are to be written."""

    metadata: pa.Table
    failures: pa.Table


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
    state += manifest.too_young.to_pylist()
    types = [f"{name}:{kind}" for name, kind in declared.items()]
    return digest("tables", VERSION, *state, _hash(table), *types)


def _hash(table: pa.Table) -> str:
    file = HashingFile()
    with pa.ipc.new_stream(file, table.schema) as writer:
        # The rows are taken, because the hash must not depend on the chunks of the table.
        for part in slices(table):
            writer.write_table(part.take(pa.array(range(len(part)))).combine_chunks())
    return file.content


def make_tables(
    ledger: Ledger, manifest: Manifest, declared: Mapping[str, str] | None = None
) -> Tables:
    """Make a dataset's tables from its ledger.

    `metadata` has one row per row that the step returned: `input`, `output`, `partition` (with
    partitions only), the manifest's columns and the step's columns. Rows are in the manifest's
    order, without inputs that the manifest no longer lists. Only the first `MAX_COLUMNS` keys of
    the step become columns. `more_columns` has the others as JSON. If inputs that are not ok keep
    earlier results, the column `stale` is true for their rows. If outputs are in packs, the column
    `pack` has their addresses. The metadata of the Parquet file names the columns with further
    files of a row. `failures.csv` has one row per input that is not ok.

    Args:
        ledger: The ledger.
        manifest: The manifest of the last run.
        declared: The Arrow type of each column that has one, as in `DeclaredRows.columns`.

    Returns:
        The tables by name.
    """
    records = ledger.records(["input", "outcome", "rows", "outputs", "result_run"])
    position = rows_of(records["input"], manifest.inputs["input"])
    # A file that is too young is no withdrawn input. It has no other columns.
    is_young = pc.is_in(records["input"], value_set=manifest.too_young)
    records = records.append_column("position", position)
    is_shown = pc.and_(pc.or_(pc.is_valid(position), is_young), has_result(records))
    records = take(records, _in_order(records, np.flatnonzero(np.asarray(is_shown))))
    if manifest.partition is not None:
        records = records.append_column(PARTITION_COLUMN, _assigned(ledger, records["input"]))
    metadata = metadata_table(records, manifest, declared or {})
    return Tables(metadata, read_failures(ledger).table)


def _in_order(records: pa.Table, rows: np.ndarray) -> pa.Array:
    """Sort rows by position. Those without one are at the end, sorted by input."""
    position = records["position"].fill_null(-1).to_numpy()[rows]
    young = rows[position < 0]
    names = records["input"].take(pa.array(young))
    young = young[pc.sort_indices(names).to_numpy()]
    listed = rows[position >= 0]
    return pa.array(np.append(listed[np.argsort(position[position >= 0])], young))


def write_tables(store: Store, tables: Tables) -> dict[str, dict[str, Any]]:
    """Write a dataset's tables. Each file is replaced atomically.

    Returns:
        The size in bytes, the content hash and the number of rows of each table by name.
    """
    write_parquet = partial(pq.write_table, compression="zstd", row_group_size=128 * 1024)
    writes: list[tuple[str, pa.Table, Callable[[pa.Table, HashingFile], object]]] = [
        (METADATA, tables.metadata, write_parquet),
        (METADATA_CSV, tables.metadata, _write_csv),
        (FAILURES_CSV, tables.failures, _write_csv),
    ]
    written = in_threads(lambda one: _write(store, *one), writes, store.threads)
    return dict(zip((name for name, *_ in writes), written, strict=True))


def _write_csv(table: pa.Table, file: HashingFile) -> None:
    pcsv.write_csv(for_csv(table), file)


def _assigned(ledger: Ledger, names: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the recorded partition of each input."""
    last = last_assignment(ledger)
    if last is None:
        return pa.chunked_array([pa.nulls(len(names), pa.string())])
    return last.rows[PARTITION_COLUMN].take(rows_of(names, last.rows["input"]))


def _write(
    store: Store, name: str, table: pa.Table, writer: Callable[[pa.Table, HashingFile], object]
) -> dict[str, Any]:
    written = write_and_hash(store, name, partial(writer, table))
    return {"size": written.size, "content": written.content, "rows": len(table)}
