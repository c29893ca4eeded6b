"""Assign the inputs of a job to partitions, with the earlier assignments of its dataset."""

import json
from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.errors import OptionError
from batchmill.ledger.assignments import (
    SCHEMA,
    Assignment,
    last_assignment,
    last_with,
    write_assignment,
)
from batchmill.ledger.ledger import Ledger
from batchmill.manifest import Manifest
from batchmill.partitioning import COLUMN, Groups, Partitioning, assign, given_by_key


def divide_manifest(
    ledger: Ledger, manifest: Manifest, partitioning: Partitioning
) -> tuple[Manifest, list[str]]:
    """Return the manifest with the partition of each row, and why groups are assigned again."""
    if manifest.groups is None:
        return manifest, []
    known: Mapping[str, str] = {}
    changes: list[str] = []
    if partitioning.stratify is not None:
        last, same = last_assignment(ledger), last_with(ledger, partitioning)
        known = same.by_group() if same else {}
        changes = partitioning.changes_since(last.partitioning) if last and not same else []
    return replace(manifest, partition=assign(manifest.groups, partitioning, known)), changes


def record_assignment(
    ledger: Ledger, run: int, manifest: Manifest, partitioning: Partitioning
) -> None:
    """Record the partition of each input, unless the ledger already has the same assignment.

    The caller must hold the dataset's lease.
    """
    if manifest.groups is None:
        return
    rows = _rows_of(manifest, manifest.groups)
    same = last_with(ledger, partitioning)
    if same and partitioning.stratify is not None:
        rows = pa.concat_tables([rows, _gone(same.rows, rows)])
    write_assignment(ledger, run, Assignment(partitioning=partitioning, rows=rows))


def _rows_of(manifest: Manifest, groups: Groups) -> pa.Table:
    given = pa.array(list(given_by_key(groups)), pa.string())
    columns = [
        manifest.inputs["input"].combine_chunks(),
        groups.keys,
        manifest.partition,
        pc.is_in(groups.keys, value_set=given),
    ]
    return pa.table(columns, schema=SCHEMA)


def _gone(before: pa.Table, now: pa.Table) -> pa.Table:
    """Return the recorded groups that are no longer listed, once each, sorted."""
    gone = before.filter(pc.invert(pc.is_in(before["group"], value_set=now["group"])))
    frame = gone.to_pandas().drop_duplicates("group").sort_values("group")
    return pa.Table.from_pandas(
        frame.assign(input=None, given=False), schema=SCHEMA, preserve_index=False
    )


def check_rows(ledger: Ledger, unchecked: pa.ChunkedArray) -> None:
    """Raise OptionError if a recorded row has a key `partition`.

    Inputs in `unchecked` are not checked, because their rows are replaced and checked then.
    """
    records = ledger.records(["input", "rows"])
    suspects = records.filter(pc.match_substring(records["rows"], json.dumps(COLUMN) + ":"))
    suspects = suspects.filter(pc.invert(pc.is_in(suspects["input"], value_set=unchecked)))
    for record in suspects.sort_by("input").to_pylist():
        # The match may be a nested key or a value.
        if any(COLUMN in row for row in json.loads(record["rows"])):
            raise OptionError(
                f"--partition: the step returned the key {COLUMN!r} for {record['input']}, but "
                "batchmill writes this column. Rename the key in the step, or drop --partition."
            )
