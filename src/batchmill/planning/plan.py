"""Decide what a run has to do: manifest + ledger + step -> plan. Pure: it touches no file."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchmill.ledger.parts import MISSING, WITHDRAWN
from batchmill.manifest import Manifest
from batchmill.manifest.file_stats import MISSING_SIZE
from batchmill.planning.change_detection import FileChanges, has_other_size, has_other_time
from batchmill.storage.large_tables import collected, count_values, select, take
from batchmill.storage.name_search import rows_of
from batchmill.storage.remote import UNKNOWN_TIME
from batchmill.urls import is_web, join

# Shared, because creating an encoder takes longer than encoding one row.
_JSON = json.JSONEncoder(default=str, ensure_ascii=False)

REASONS = ("new", "changed", "damaged", "retry", "limit", "forced")
# The reason of inputs with a result whose file does not exist or cannot be looked up.
UNREADABLE = "unreadable"
# The reason of inputs whose outputs an earlier version of the step's code made, and that are kept.
ADOPTED = "adopted"
PLANNED_COLUMNS = (
    "input",
    "input_id",
    "outcome",
    "outputs",
    "size",
    "mtime_ns",
    "etag",
    "ctime_ns",
    "companions",
    "content",
    "carried",
    "step",
    "run",
    "absence",
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The work of a run.

    Attributes:
        pending: One row per input to execute: `position` (its row in the manifest), `input`, `size`
            (bytes, -1 if there is no such file), `mtime_ns`, `etag` and `reason` (one of REASONS).
        withdrawn: `input` and `input_id` of the recorded inputs that the manifest no longer lists.
        touched: Inputs whose time changed while their content stayed the same.
        adopted: Inputs whose outputs an earlier version of the step's code made. The user accepts
            them for the present code.
        unreadable: Inputs whose file cannot be looked up, although they have an `ok` result. They
            are not executed, so the result stays.
        absences: `input` and `absence` of the records whose absence has changed since the last run:
            `withdrawn`, `missing` for unreadable inputs, null for those that are there again.
        counts: The number of inputs by reason, and the numbers of quarantined, unchanged and
            withdrawn inputs. If there are unreadable or adopted inputs, also their numbers.
        resolved: The number of inputs that are not pending, by recorded outcome. Unreadable inputs
            count as missing.
        stale_steps: The identities of other steps that have records, with their number of records.
        left: The inputs outside the sample that the run executes, with the columns of `pending`.
            None without a sample.
    """

    pending: pa.Table
    withdrawn: pa.Table
    touched: pa.Array
    adopted: pa.Array
    unreadable: pa.Array
    absences: pa.Table
    counts: Mapping[str, int]
    resolved: Mapping[str, int]
    stale_steps: Mapping[str, int]
    left: pa.Table | None = None

    def first(self, reason: str, count: int) -> list[str]:
        """Return the names of at most `count` inputs that are pending for a reason."""
        chosen = self.pending.filter(pc.field("reason") == reason)
        names: list[str] = chosen.column("input").slice(0, count).to_pylist()
        return names


# The decision about an input, and the columns of its record that the plan counts.
_DECISIONS = pa.schema(
    [
        ("reason", pa.string()),
        ("is_touched", pa.bool_()),
        ("outcome", pa.string()),
        ("step", pa.string()),
        ("absence", pa.string()),
    ]
)


class Matched(NamedTuple):
    """The records of the inputs of a manifest, row for row.

    Attributes:
        rows: The row of each input's record in the ledger's records, null without one.
        done: The records, rows of nulls for inputs without one.
    """

    rows: pa.Array
    done: pa.Table


class _Comparison(NamedTuple):
    """One mask per kind of difference between an input and its record."""

    is_new: pa.Array
    is_touched: pa.Array
    is_changed: pa.Array


def make_plan(
    manifest: Manifest,
    records: pa.Table,
    step_identity: str,
    *,
    matched: Matched | None = None,
    takes_rows: bool = False,
    released: Mapping[str, int] = MappingProxyType({}),
    changes: FileChanges = FileChanges(),
    below_limits: Sequence[str] = (),
    forced_after: int | None = None,
    adopted_steps: Collection[str] = (),
) -> Plan:
    """Compare the inputs of a manifest with the records of a ledger.

    Args:
        manifest: The checked manifest.
        records: The ledger's records, with at least PLANNED_COLUMNS.
        step_identity: The identity of the step to run.
        matched: The result of `match_records`, if it was already called.
        takes_rows: True if the step receives the manifest's other columns. A change in them then
            re-runs the input.
        released: Inputs to retry. The value is the last run whose outcome is ignored. Other failed
            inputs are quarantined.
        changes: The result of `detect_changes`. Without it, each file with another time is
            "changed".
        below_limits: The result of `inputs_below_limits`.
        forced_after: The last run whose outcomes a forced run ignores. None without `--force`.
        adopted_steps: Identities of earlier versions of the step. The user accepts their `ok`
            outcomes for this version.

    Returns:
        The plan.
    """
    names = manifest.inputs["input"]
    matched = matched or match_records(records, manifest.inputs)
    decide = partial(
        _decide,
        step_identity=step_identity,
        takes_rows=takes_rows,
        released=released,
        changes=changes,
        below_limits=pa.array(below_limits, pa.string()),
        forced_after=forced_after,
        adopted_steps=adopted_steps,
    )
    decided = collected(
        (decide(part, matched.done.slice(start, len(part))) for start, part in manifest.slices()),
        _DECISIONS,
    )
    reason = decided["reason"]
    is_unreadable, is_adopted = pc.equal(reason, UNREADABLE), pc.equal(reason, ADOPTED)
    is_pending = pc.is_in(reason, value_set=pa.array(REASONS))
    is_done = pc.invert(is_pending)
    is_touched = pc.and_(decided["is_touched"], is_done)
    withdrawn = _withdrawn(records, matched.rows, manifest)
    has_other_step = _differ(decided["step"], step_identity)
    counted = count_values(reason)
    resolved = pc.if_else(is_unreadable, MISSING, decided["outcome"])
    planned = manifest.inputs.append_column("position", pa.array(np.arange(len(manifest))))
    return Plan(
        pending=select(planned.append_column("reason", reason), is_pending),
        withdrawn=withdrawn.select(["input", "input_id"]),
        touched=_chosen(names, is_touched),
        adopted=_chosen(names, is_adopted),
        unreadable=_chosen(names, is_unreadable),
        absences=_absences(names, decided["absence"], is_unreadable, withdrawn),
        counts={
            **{name: counted[name] for name in (*REASONS, "quarantined", "unchanged")},
            "withdrawn": len(withdrawn),
            **{name: counted[name] for name in (UNREADABLE, ADOPTED) if counted[name]},
        },
        resolved=dict(count_values(resolved.filter(is_done))),
        stale_steps=dict(count_values(decided["step"].filter(has_other_step)).most_common()),
    )


def _decide(
    manifest: Manifest,
    done: pa.Table,
    *,
    step_identity: str,
    takes_rows: bool,
    released: Mapping[str, int],
    changes: FileChanges,
    below_limits: pa.Array,
    forced_after: int | None,
    adopted_steps: Collection[str],
) -> pa.Table:
    """Return the decisions about some inputs.

    Args:
        manifest: A part of the manifest.
        done: The record of each of its inputs, null without one.
        step_identity: With all others: the arguments of `make_plan`.
        takes_rows: See `make_plan`.
        released: See `make_plan`.
        changes: See `make_plan`.
        below_limits: See `make_plan`.
        forced_after: See `make_plan`.
        adopted_steps: See `make_plan`.
    """
    inputs = manifest.inputs
    is_adopted = _is_adopted(done, adopted_steps)
    recorded_step = pc.if_else(is_adopted, step_identity, done["step"])
    compared = _compare(
        manifest, done, recorded_step, step_identity, changes, takes_rows=takes_rows
    )
    is_released = _is_released(inputs["input"], done["run"], released)
    is_damaged = pc.is_in(inputs["input"], value_set=pa.array(sorted(changes.damaged), pa.string()))
    is_below_limit = pc.is_in(inputs["input"], value_set=below_limits)
    is_unreadable = _is_unreadable(manifest, done)
    reason = pc.if_else(
        is_unreadable,
        UNREADABLE,
        _reasons(compared, done, is_damaged, is_released, is_below_limit, forced_after),
    )
    reason = pc.if_else(pc.and_(is_adopted, pc.equal(reason, "unchanged")), ADOPTED, reason)
    columns = [reason, compared.is_touched, *(done[name] for name in _DECISIONS.names[2:])]
    return pa.table(columns, schema=_DECISIONS)


def _reasons(
    compared: _Comparison,
    done: pa.Table,
    is_damaged: pa.ChunkedArray,
    is_released: pa.ChunkedArray,
    is_below_limit: pa.ChunkedArray,
    forced_after: int | None,
) -> pa.ChunkedArray:
    """Return why each input is pending, or that it is quarantined or unchanged."""
    is_forced = pc.less_equal(done["run"], -1 if forced_after is None else forced_after)
    is_quarantined = pc.and_(_differ(done["outcome"], "ok"), pc.invert(is_released))
    # In the order of REASONS.
    masks = (compared.is_new, compared.is_changed, is_damaged, is_released, is_below_limit)
    return pc.case_when(
        pc.make_struct(*masks, is_forced.fill_null(False)),
        *REASONS,
        pc.if_else(is_quarantined, "quarantined", "unchanged"),
    )


def _is_unreadable(manifest: Manifest, done: pa.Table) -> pa.ChunkedArray:
    """Return which inputs have an `ok` result, but no file that can be looked up.

    A web server may send a file although it did not report its size.
    """
    names = manifest.inputs["input"]
    is_absent = pc.equal(manifest.inputs["size"], MISSING_SIZE)
    is_ok = pc.equal(done["outcome"], "ok").fill_null(False)
    absent = names.filter(pc.and_(is_ok, is_absent)).to_pylist()
    found = [name for name in absent if not is_web(join(manifest.root, name))]
    return pc.is_in(names, value_set=pa.array(found, pa.string()))


def match_records(records: pa.Table, inputs: pa.Table) -> Matched:
    """Find the record of each input.

    Args:
        records: The ledger's records.
        inputs: The manifest's inputs.
    """
    rows = rows_of(inputs["input"], records["input"])
    # The parts of a plan follow the order of the manifest, so the records are sorted once.
    return Matched(rows, take(records, rows))


def encode_manifest_columns(row: Mapping[str, Any]) -> str:
    """Return an input's other manifest columns as the JSON text that the ledger stores."""
    return _JSON.encode(row) if row else "{}"


def _compare(
    manifest: Manifest,
    done: pa.Table,
    recorded_step: pa.ChunkedArray,
    step_identity: str,
    changes: FileChanges,
    *,
    takes_rows: bool,
) -> _Comparison:
    """Compare each input with its record, the same row of `done` and `recorded_step`."""
    inputs = manifest.inputs
    has_other_step = _differ(recorded_step, step_identity)
    is_other_size = has_other_size(done, inputs)
    is_other_time = has_other_time(done, inputs)
    has_unknown_time = pc.equal(inputs["mtime_ns"], UNKNOWN_TIME)
    has_same_content = pc.and_(
        pc.equal(done["content"], _content_hashes(inputs["input"], changes)),
        pc.invert(is_other_size),
    ).fill_null(False)
    is_other_file = pc.or_(
        is_other_size,
        pc.and_(pc.or_(is_other_time, has_unknown_time), pc.invert(has_same_content)),
    )
    is_changed = pc.or_(has_other_step, is_other_file)
    if takes_rows:
        rows = pa.array(
            [encode_manifest_columns(row) for row in manifest.manifest_rows()], pa.string()
        )
        is_changed = pc.or_(is_changed, _differ(done["carried"], rows))
    return _Comparison(
        is_new=pc.is_null(done["input"]),
        is_touched=pc.and_(is_other_time, has_same_content),
        is_changed=is_changed,
    )


def _withdrawn(known: pa.Table, record_rows: pa.Array, manifest: Manifest) -> pa.Table:
    """Return the records of inputs that the manifest no longer lists."""
    is_listed = np.zeros(len(known), bool)
    is_listed[record_rows.drop_null().to_numpy()] = True
    unlisted = select(known, ~is_listed)
    # A file that was left out because it is too young still exists.
    return unlisted.filter(pc.invert(pc.is_in(unlisted["input"], value_set=manifest.too_young)))


def _absences(
    names: pa.ChunkedArray,
    before: pa.ChunkedArray,
    is_unreadable: pa.ChunkedArray,
    withdrawn: pa.Table,
) -> pa.Table:
    """Return `input` and `absence` of the records whose absence has changed."""
    absence = pc.if_else(is_unreadable, MISSING, pa.scalar(None, pa.string()))
    listed = pa.table([names, absence, before], ["input", "absence", "before"])
    unlisted = pa.table(
        [withdrawn["input"], pa.repeat(WITHDRAWN, len(withdrawn)), withdrawn["absence"]],
        ["input", "absence", "before"],
    )
    both = pa.concat_tables([listed, unlisted])
    has_changed = pc.not_equal(both["absence"].fill_null(""), both["before"].fill_null(""))
    return select(both.select(["input", "absence"]), has_changed)


def _chosen(names: pa.ChunkedArray, mask: pa.ChunkedArray) -> pa.ChunkedArray:
    return select(pa.table([names], ["input"]), mask)["input"]


def _content_hashes(names: pa.ChunkedArray, changes: FileChanges) -> pa.Array:
    """Return the hash of each input that was read; null for inputs not read or unreadable."""
    index = pc.index_in(names, value_set=pa.array(list(changes.contents), pa.string()))
    hashes = pa.array([text or None for text in changes.contents.values()], pa.string())
    return hashes.take(index.combine_chunks()) if len(hashes) else pa.nulls(len(names), pa.string())


def _is_adopted(done: pa.Table, steps: Collection[str]) -> pa.ChunkedArray:
    """Return which records are `ok` outcomes of one of these steps."""
    is_theirs = pc.is_in(done["step"], value_set=pa.array(sorted(steps), pa.string()))
    return pc.and_(is_theirs, pc.equal(done["outcome"], "ok")).fill_null(False)


def _is_released(
    names: pa.ChunkedArray, runs: pa.ChunkedArray, released: Mapping[str, int]
) -> pa.ChunkedArray:
    """Return which inputs were released after the run that recorded them."""
    until = pa.array(list(released.values()), pa.int32())
    index = pc.index_in(names, value_set=pa.array(list(released), pa.string()))
    return pc.less_equal(runs, until.take(index)).fill_null(False)


def _differ(recorded: pa.ChunkedArray, current: pa.ChunkedArray | str) -> pa.ChunkedArray:
    """Return a mask of the recorded values that differ; False if nothing is recorded."""
    return pc.not_equal(recorded, current).fill_null(False)
