"""Decide what a run has to do: manifest + ledger + step -> plan. Touches nothing."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchmill.manifest import Manifest
from batchmill.planning.change_detection import Survey
from batchmill.storage.remote import UNKNOWN_TIME

# One for all: to make an encoder takes longer than to use it.
_JSON = json.JSONEncoder(default=str, ensure_ascii=False)

REASONS = ("new", "changed", "damaged", "retry", "forced")
PLANNED_COLUMNS = (
    "input",
    "input_id",
    "outcome",
    "outputs",
    "size",
    "mtime_ns",
    "etag",
    "content",
    "carried",
    "step",
    "run",
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run has to do.

    `pending` has a row for each input to execute: `position` (its row in the manifest), `input`,
    `size` (bytes, -1 if there is no such file), `mtime_ns`, `etag` and `reason` (one of REASONS).
    `withdrawn` has `input` and `input_id` of those that the manifest no longer lists. `touched` are
    inputs whose time is another, and whose content is what it was. `counts` says how many inputs
    are pending for which reason, quarantined, unchanged, withdrawn; `settled` counts those that are
    not pending by outcome; `stale_steps` has the identities of other steps of which there are
    records, with their number.
    """

    pending: pa.Table
    withdrawn: pa.Table
    touched: pa.Array
    counts: Mapping[str, int]
    settled: Mapping[str, int]
    stale_steps: Mapping[str, int]

    def first(self, reason: str, count: int) -> list[str]:
        """Return the names of the first inputs that are pending for this reason."""
        chosen = self.pending.filter(pc.field("reason") == reason)
        names: list[str] = chosen.column("input").slice(0, count).to_pylist()
        return names


def make_plan(
    manifest: Manifest,
    records: pa.Table,
    step_identity: str,
    *,
    place: pa.Array | None = None,
    takes_rows: bool = False,
    released: Mapping[str, int] | None = None,
    found: Survey | None = None,
    force: bool = False,
) -> Plan:
    """Compare a manifest's inputs with the ledger's records (at least PLANNED_COLUMNS of them).

    `place` is what `place_in` returns of them, for whoever has it already.
    A step that `takes_rows` sees the manifest's other columns: there, they are part of an input.
    An input that failed is quarantined, unless it is `released`: the run up to which its outcome
    counts no more. `found` is what a look at the files has shown; without it, a file with another
    time has changed. With `force`, all inputs are pending.
    """
    found = found or Survey()
    inputs = manifest.inputs
    known = records.select(list(PLANNED_COLUMNS))
    place = place_in(known, inputs) if place is None else place
    done = known.take(place)

    is_new = pc.is_null(place)
    other_step = _differ(done["step"], step_identity)
    other_time = pc.or_(
        _differ(done["mtime_ns"], inputs["mtime_ns"]), _differ(done["etag"], inputs["etag"])
    )
    unknown_time = pc.equal(inputs["mtime_ns"], UNKNOWN_TIME)
    same_content = pc.and_(
        pc.equal(done["content"], _contents(inputs["input"], found)),
        pc.equal(done["size"], inputs["size"]),
    ).fill_null(False)
    other_file = pc.or_(
        _differ(done["size"], inputs["size"]),
        pc.and_(pc.or_(other_time, unknown_time), pc.invert(same_content)),
    )
    changed = pc.or_(other_step, other_file)
    if takes_rows:
        rows = pa.array([carried_text(row) for row in manifest.carried_rows()], pa.string())
        changed = pc.or_(changed, _differ(done["carried"], rows))
    damaged = pc.is_in(inputs["input"], value_set=pa.array(sorted(found.damaged), pa.string()))
    failed = _differ(done["outcome"], "ok")
    let_go = _is_released(inputs["input"], done["run"], released or {})
    quarantined = pc.and_(failed, pc.invert(let_go))

    reason = pc.case_when(
        pc.make_struct(is_new, changed, damaged, let_go, pa.scalar(force)),
        *REASONS,
        pc.if_else(quarantined, "quarantined", "unchanged"),
    )
    table = pa.table(
        {
            "position": np.arange(len(inputs)),
            "input": inputs["input"],
            "size": inputs["size"],
            "mtime_ns": inputs["mtime_ns"],
            "etag": inputs["etag"],
            "reason": reason,
        }
    )
    is_pending = pc.is_in(reason, value_set=pa.array(REASONS))
    is_listed = np.zeros(len(known), bool)
    is_listed[place.drop_null().to_numpy()] = True
    unlisted = known.filter(~is_listed)
    # What was left out because it is being written is there all the same.
    withdrawn = unlisted.filter(
        pc.invert(pc.is_in(unlisted["input"], value_set=manifest.unsettled))
    )
    counted = _count(reason)
    return Plan(
        pending=table.filter(is_pending),
        withdrawn=withdrawn.select(["input", "input_id"]),
        touched=inputs["input"].filter(
            pc.and_(pc.and_(other_time, same_content), pc.invert(is_pending))
        ),
        counts={
            **{name: counted[name] for name in (*REASONS, "quarantined", "unchanged")},
            "withdrawn": len(withdrawn),
        },
        settled=dict(_count(done["outcome"].filter(pc.invert(is_pending)))),
        stale_steps=dict(_count(done["step"].filter(other_step)).most_common()),
    )


def place_in(records: pa.Table, inputs: pa.Table) -> pa.Array:
    """Return the row of each input's record; null for those that have none."""
    found = pc.index_in(inputs["input"], value_set=_one(records["input"]))
    return _one(found)


def _count(values: pa.Array | pa.ChunkedArray) -> Counter[str]:
    found = pc.value_counts(values)
    names, counts = found.field("values").to_pylist(), found.field("counts").to_pylist()
    return Counter(dict(zip(names, counts, strict=True)))


def _contents(names: pa.ChunkedArray, found: Survey) -> pa.ChunkedArray:
    """Return the hash of each input that was looked at; null for the others, and what is unread."""
    place = pc.index_in(names, value_set=pa.array(list(found.contents), pa.string()))
    hashes = pa.array([text or None for text in found.contents.values()], pa.string())
    return hashes.take(place.combine_chunks()) if len(hashes) else pa.nulls(len(names), pa.string())


def _one(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column


def _is_released(
    names: pa.ChunkedArray, runs: pa.ChunkedArray, released: Mapping[str, int]
) -> pa.ChunkedArray:
    """Tell which inputs run again: those released after the run that recorded them."""
    until = pa.array(list(released.values()), pa.int32())
    place = pc.index_in(names, value_set=pa.array(list(released), pa.string()))
    return pc.less_equal(runs, until.take(place)).fill_null(False)


def carried_text(row: Mapping[str, Any]) -> str:
    """Write the manifest's other columns of an input as the ledger has them."""
    return _JSON.encode(row) if row else "{}"


def _differ(recorded: pa.ChunkedArray, current: pa.ChunkedArray | str) -> pa.ChunkedArray:
    """Tell where what is recorded is not what is so now; of what is not recorded, False."""
    return pc.not_equal(recorded, current).fill_null(False)
