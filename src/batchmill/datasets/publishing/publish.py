"""Publish a dataset's tables if its state or its manifest changed.

They are metadata.parquet, metadata.csv and failures.csv.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from batchmill.core.digests import digest
from batchmill.core.layout import FAILURES_CSV, METADATA, METADATA_CSV, PARTITION_COLUMN
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.snapshots import Snapshot
from batchmill.core.ledger.state import OK, State, has_result
from batchmill.core.manifest import Manifest
from batchmill.core.partitions.record import Assignment, write_assignment
from batchmill.core.planning.plan_file import PlanFile
from batchmill.core.planning.prepare import Prepared
from batchmill.core.planning.run_spec import spec_of
from batchmill.core.storage import Store, if_exists, in_threads
from batchmill.core.storage.fingerprints import HashingFile
from batchmill.core.storage.large_tables import select, slices, take
from batchmill.core.storage.name_search import rows_of
from batchmill.core.storage.store import write_and_hash
from batchmill.datasets.publishing.failure_groups import read_failures
from batchmill.datasets.publishing.metadata_table import for_csv, metadata_table
from batchmill.datasets.publishing.table_check import check_table
from batchmill.version import VERSION


class Tables(NamedTuple):
    """The tables of a dataset that are to be written."""

    metadata: pa.Table
    failures: pa.Table


def publish_changes(prepared: Prepared, run: int) -> str:
    """Publish the tables of a dataset, and record the state that a run leaves.

    Tables that are up to date are not written again. If they break an expectation, the published
    ones stay as they are. Without any change, nothing is written.

    Args:
        prepared: The job of the run, with the state that the run leaves.
        run: The number of the run.

    Returns:
        Why the run published nothing. Empty if the tables are up to date now.
    """
    ledger, store, manifest = prepared.ledger, prepared.ledger.store, prepared.manifest
    settings = PlanFile(ledger, run).settings()
    spec, last = spec_of(settings), ledger.snapshots.last()
    version = ledger.snapshots.last_version()
    state = prepared.state if prepared.state.file else ledger.files.write_state(run, prepared.state)
    file = state.file or {}
    now = Snapshot(
        number=run,
        created=time.time(),
        state=file,
        shown=0,
        step=spec.identity,
        settings=settings,
        made_of=_made_of(prepared, file["content"], spec.declared),
        inputs=_hash(_contents_of(state)),
        tables=last.tables if last else {},
        assignment=last.assignment if last else {},
        adoptions=_adoptions(prepared, run, last),
    )
    is_same = last is not None and (last.made_of, last.origin) == (now.made_of, now.origin)
    is_same = is_same and (not now.assignment or store.exists(now.assignment["name"]))
    if version and last and is_same and last.shown and _are_whole(ledger, last, version):
        with store.open(METADATA) as file:  # The expectations of this run may be others.
            return check_table(pq.read_table(file), spec, ledger) if spec.policy.expect else ""
    made = make_tables(prepared.state, manifest, spec.declared, prepared.assignment)
    reason = check_table(made.metadata, spec, ledger)
    if reason:
        if not prepared.state.file:
            ledger.snapshots.record(now)
        return reason
    now = replace(now, shown=run, tables=write_tables(store, made))
    if prepared.assignment:
        now = replace(now, assignment=write_assignment(ledger, run, prepared.assignment))
    if version and version.published == now.published:
        now = replace(now, shown=version.number)
    store.copy(METADATA, ledger.snapshots.file_name(now.shown, "table"))
    ledger.snapshots.record(now)
    return ""


def _are_whole(ledger: Ledger, last: Snapshot, version: Snapshot) -> bool:
    """Return whether the tables of the dataset, and that of the version, are as recorded."""
    now = if_exists(ledger.store.content_of, ledger.snapshots.file_name(version.number, "table"))
    return now == version.table and last.matches(ledger.store)


def _adoptions(prepared: Prepared, run: int, last: Snapshot | None) -> list[dict[str, Any]]:
    """Return the results of earlier code that are in use after a run."""
    listed = prepared.state.listed().table
    in_use = select(listed, has_result(listed))
    oldest = pc.min(pc.coalesce(in_use["result_run"], in_use["run"])).as_py()
    now, earlier = prepared.adoption(run), last.adoptions if last else ()
    # Results that were executed again later have the number of that run.
    stay = [dict(adoption) for adoption in earlier if oldest and oldest < adoption["run"]]
    return [*stay, *([asdict(now)] if now else [])]


def _made_of(prepared: Prepared, state: str, declared: Mapping[str, str]) -> str:
    """Return a hash of everything that a version depends on. `state` is the hash of the state."""
    manifest, assignment = prepared.manifest, prepared.assignment
    columns = [manifest.inputs["input"], *manifest.manifest_columns.columns]
    names = ["the input", *manifest.manifest_columns.column_names]
    if prepared.partition is not None:
        columns, names = [*columns, prepared.partition], [*names, "its partition"]
    table = pa.Table.from_arrays(columns, names)
    types = [f"{name}:{kind}" for name, kind in declared.items()]
    young = manifest.too_young.to_pylist()
    divided = [str(assignment.partitioning), _hash(assignment.rows)] if assignment else []
    return digest("tables", VERSION, state, *young, _hash(table), *types, *divided)


def _contents_of(state: State) -> pa.Table:
    """Return the names and contents of the inputs that are ok, sorted by their names."""
    inputs = state.listed().table
    inputs = select(inputs, pc.equal(inputs["outcome"], OK))
    # An input that was read in parts has no known content, but an ETag.
    is_known = pc.not_equal(inputs["content"], "")
    contents = pc.if_else(is_known, inputs["content"], inputs["etag"])
    return pa.table({"input": inputs["input"], "content": contents}).sort_by("input")


def _hash(table: pa.Table) -> str:
    file = HashingFile()
    with pa.ipc.new_stream(file, table.schema) as writer:
        # The rows are taken, because the hash must not depend on the chunks of the table.
        for part in slices(table):
            writer.write_table(part.take(pa.array(range(len(part)))).combine_chunks())
    return file.content


def make_tables(
    state: State,
    manifest: Manifest,
    declared: Mapping[str, str] | None = None,
    assignment: Assignment | None = None,
) -> Tables:
    """Make a dataset's tables from its state.

    `metadata` has one row per row that the step returned: `input`, `output`, `partition` (with
    partitions only), the manifest's columns and the step's columns. Rows are in the manifest's
    order, without inputs that the manifest no longer lists. Only the first `MAX_COLUMNS` keys of
    the step become columns. `more_columns` has the others as JSON. If inputs that are not ok keep
    earlier results, the column `stale` is true for their rows. If outputs are in packs, the column
    `pack` has their addresses. The metadata of the Parquet file names the columns with further
    files of a row. `failures.csv` has one row per input that is not ok.

    Args:
        state: The state.
        manifest: The manifest of the last run.
        declared: The Arrow type of each column that has one, as in `DeclaredRows.columns`.
        assignment: The partitions of the inputs. None without partitions.

    Returns:
        The tables by name.
    """
    position = rows_of(state.names, manifest.inputs["input"])
    # A file that is too young is no withdrawn input. It has no other columns.
    is_young = pc.is_in(state.names, value_set=manifest.too_young)
    is_shown = pc.and_(pc.or_(pc.is_valid(position), is_young), has_result(state.table))
    records = state.select(is_shown).records(["input", "rows", "outputs", "result_run"])
    records = records.append_column("position", position.filter(is_shown.combine_chunks()))
    # A file that is too young has no position. These are at the end, sorted by name.
    order = pc.sort_indices(records, [("position", "ascending"), ("input", "ascending")])
    records = take(records, order.cast(pa.int64()))
    if assignment is not None:
        place = rows_of(records["input"], assignment.rows["input"])
        partition = assignment.rows[PARTITION_COLUMN].take(place)
        records = records.append_column(PARTITION_COLUMN, partition)
    metadata = metadata_table(records, manifest, declared or {})
    return Tables(metadata, read_failures(state).table)


def write_tables(store: Store, tables: Tables) -> dict[str, dict[str, Any]]:
    """Write a dataset's tables. Each file is replaced atomically.

    Returns:
        The size in bytes, the content hash and the number of rows of each table by name.
    """
    parts = {
        METADATA: tables.metadata,
        METADATA_CSV: tables.metadata,
        FAILURES_CSV: tables.failures,
    }

    def write(name: str) -> dict[str, Any]:
        writer = _write_parquet if name == METADATA else _write_csv
        written = write_and_hash(store, name, partial(writer, parts[name]))
        return {"size": written.size, "content": written.content, "rows": len(parts[name])}

    return dict(zip(parts, in_threads(write, [*parts], store.threads), strict=True))


def _write_parquet(table: pa.Table, file: HashingFile) -> None:
    pq.write_table(table, file, compression="zstd", row_group_size=128 * 1024)


def _write_csv(table: pa.Table, file: HashingFile) -> None:
    pcsv.write_csv(for_csv(table), file)
