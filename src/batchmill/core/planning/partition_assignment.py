"""Assign the inputs of a job to partitions, with the earlier assignments of its dataset."""

import json
from dataclasses import replace
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core.layout import MADE_FROM, PARTITION_COLUMN
from batchmill.core.ledger.state import State
from batchmill.core.manifest import Manifest
from batchmill.core.partitions.manifest_groups import inherited_groups, read_groups
from batchmill.core.partitions.partitioning import GROUPS, Partitioning, assign, given_by_key
from batchmill.core.partitions.record import SCHEMA, Assignment
from batchmill.core.storage.large_tables import with_column
from batchmill.errors import OptionError

# A name, and the columns of GROUPS.
_NAMED_GROUPS = GROUPS.insert(0, pa.field("input", pa.string()))


def reasons_to_reassign(last: Assignment | None, partitioning: Partitioning) -> list[str]:
    """Return the changed options because of which all groups are assigned again.

    Without strata, a partition does not depend on earlier ones.
    """
    if last is None or partitioning.stratify is None:
        return []
    return partitioning.changes_since(last.partitioning)


def assign_manifest(
    last: Assignment | None, state: State, manifest: Manifest, partitioning: Partitioning
) -> Assignment:
    """Assign each row of a manifest to a partition, and each withdrawn input.

    Args:
        last: The last assignment of the dataset. None without one.
        state: The state of the dataset.
        manifest: The manifest with its groups.
        partitioning: The options.

    Returns:
        The assignment. It has the manifest's inputs first, in the same order.

    Raises:
        LedgerError: An assignment of the dataset that is the manifest cannot be read.
    """
    is_kept = partitioning.stratify is not None and not reasons_to_reassign(last, partitioning)
    kept = last if is_kept else None
    withdrawn = _withdrawn(state, manifest, partitioning, last)
    valid = _without_overruled(withdrawn, manifest.groups, partitioning)
    groups = pa.concat_tables([manifest.groups, valid.select(GROUPS.names)])
    inputs = [*manifest.inputs["input"].chunks, *valid["input"].chunks]
    names = pa.chunked_array(inputs, pa.string())
    partition = assign(groups, partitioning, kept.by_group() if kept else {})
    is_given = pc.is_in(groups["group"], value_set=pa.array([*given_by_key(groups)], pa.string()))
    rows = pa.table([names.combine_chunks(), groups["group"], partition, is_given], schema=SCHEMA)
    if kept:
        rows = pa.concat_tables([rows, _gone(kept.rows, rows)])
    return Assignment(partitioning=partitioning, rows=rows)


def _withdrawn(
    state: State, manifest: Manifest, partitioning: Partitioning, recorded: Assignment | None
) -> pa.Table:
    """Return the names and the groups of inputs that have a record, but are not in the manifest.

    An input stays in its recorded group, unless the dataset that is the manifest has another one
    for it. If the group column is another one, or if there is no assignment yet, the columns of the
    manifest at its last execution give the group. Later ones are not recorded.
    """
    withdrawn = state.not_of(manifest.inputs["input"])
    records = withdrawn.records(["input", "carried"]).sort_by("input")
    names = records["input"].combine_chunks()
    carried = [json.loads(text) for text in records["carried"].to_pylist()]
    wanted = [name for name in (partitioning.group_by, partitioning.stratify) if name]
    # With dtype=object, whole numbers stay whole in a column with missing values.
    frame = pd.DataFrame(carried, index=range(len(carried)), dtype=object)
    frame = frame.reindex(columns=list(dict.fromkeys([*frame.columns, *wanted])))
    source = manifest.dataset if len(names) else ""
    inherited = inherited_groups(source, manifest.version, partitioning)
    groups = read_groups(frame, names, partitioning, inherited)
    keys, given = groups["group"].to_pylist(), groups["given"].to_pylist()
    before: dict[str, dict[str, Any]] = {}
    if recorded:
        rows = recorded.rows.filter(pc.is_in(recorded.rows["input"], value_set=names))
        before = {row["input"]: row for row in rows.to_pylist()}
    has_same_groups = recorded and recorded.partitioning.group_by == partitioning.group_by
    for row, name in enumerate(names.to_pylist()):
        if name in before:
            group = before[name]
            given[row] = group["partition"] if group["given"] else None
            if has_same_groups and carried[row].get(MADE_FROM) not in (inherited or {}):
                keys[row] = group["group"]
    return pa.table([names, keys, groups["stratum"], given], schema=_NAMED_GROUPS)


def _without_overruled(groups: pa.Table, listed: pa.Table, partitioning: Partitioning) -> pa.Table:
    """Return groups without the given partitions that do not apply any longer.

    The listed inputs decide for their group, and a partition must be one of the options.
    """
    known = pa.array(list(partitioning.shares), pa.string())
    is_known = pc.is_in(groups["given"], value_set=known)
    is_overruled = pc.is_in(groups["group"], value_set=listed["group"])
    applies = pc.and_(is_known, pc.invert(is_overruled))
    given = pc.if_else(applies, groups["given"], pa.scalar(None, pa.string()))
    return with_column(groups, "given", given)


def without_withdrawn(assignment: Assignment, manifest: Manifest) -> Assignment:
    """Return an assignment after the inputs that the manifest does not list were removed.

    With strata, their groups stay. They may be listed again.
    """
    rows = assignment.rows.slice(0, len(manifest))
    if assignment.partitioning.stratify is not None:
        rows = pa.concat_tables([rows, _gone(assignment.rows, rows)])
    return replace(assignment, rows=rows)


def _gone(before: pa.Table, now: pa.Table) -> pa.Table:
    """Return the recorded groups that no input has any longer, once each, sorted."""
    gone = before.filter(pc.invert(pc.is_in(before["group"], value_set=now["group"])))
    frame = gone.to_pandas().drop_duplicates("group").sort_values("group")
    return pa.Table.from_pandas(
        frame.assign(input=None, given=False), schema=SCHEMA, preserve_index=False
    )


def check_rows(state: State) -> None:
    """Raise OptionError if a recorded row of some inputs has a key `partition`."""
    records = state.records(["input", "rows"])
    suspects = records.filter(
        pc.match_substring(records["rows"], json.dumps(PARTITION_COLUMN) + ":")
    )
    for record in suspects.sort_by("input").to_pylist():
        # The match may be a nested key or a value.
        if any(PARTITION_COLUMN in row for row in json.loads(record["rows"])):
            raise OptionError(
                f"--partition: the step returned the key {PARTITION_COLUMN!r} "
                f"for {record['input']}, but batchmill writes this column. Rename the key in the "
                "step, or drop --partition."
            )
