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

REASONS = ("new", "changed", "retry")
PLANNED_COLUMNS = ("input", "outcome", "size", "mtime_ns", "carried", "step", "run")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run has to do.

    `pending` has a row for each input to execute: `position` (its row in the manifest), `input`,
    `size` (bytes, -1 if there is no such file), `mtime_ns` and `reason` (one of REASONS).
    `counts` says how many inputs are new, changed, to be retried, quarantined, unchanged,
    withdrawn; `settled` counts those that are not pending by outcome; `step_changed` tells whether
    "changed" is for the step's sake.
    """

    pending: pa.Table
    counts: Mapping[str, int]
    settled: Mapping[str, int]
    step_changed: bool

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
    takes_rows: bool = False,
    released: Mapping[str, int] | None = None,
) -> Plan:
    """Compare a manifest's inputs with the ledger's records (at least PLANNED_COLUMNS of them).

    A step that `takes_rows` sees the manifest's other columns: there, they are part of an input.
    An input that failed is quarantined, unless it is `released`: the run up to which its failures
    count no more.
    """
    inputs = manifest.inputs
    known = records.select(list(PLANNED_COLUMNS))
    place = pc.index_in(inputs["input"], value_set=pa.concat_arrays(known["input"].chunks))
    done = known.take(place)

    is_new = pc.is_null(place)
    other_step = _differ(done["step"], step_identity)
    other_file = pc.or_(
        _differ(done["size"], inputs["size"]), _differ(done["mtime_ns"], inputs["mtime_ns"])
    )
    changed = pc.or_(other_step, other_file)
    if takes_rows:
        rows = pa.array([carried_text(row) for row in manifest.carried_rows()], pa.string())
        changed = pc.or_(changed, _differ(done["carried"], rows))
    failed = pc.and_(_differ(done["outcome"], "ok"), pc.invert(changed))
    retry = pc.and_(failed, _is_released(inputs["input"], done["run"], released or {}))
    is_pending = pc.or_(is_new, pc.or_(changed, retry))

    reason = pc.if_else(is_new, "new", pc.if_else(changed, "changed", "retry"))
    table = pa.table(
        {
            "position": np.arange(len(inputs)),
            "input": inputs["input"],
            "size": inputs["size"],
            "mtime_ns": inputs["mtime_ns"],
            "reason": reason,
        }
    )
    counts = {
        "new": _count(is_new),
        "changed": _count(changed),
        "retry": _count(retry),
        "quarantined": _count(failed) - _count(retry),
        "unchanged": len(inputs) - _count(is_pending) - _count(failed) + _count(retry),
        "withdrawn": len(known) - (len(inputs) - _count(is_new)),
    }
    return Plan(
        pending=table.filter(is_pending),
        counts=counts,
        settled=dict(Counter(done["outcome"].filter(pc.invert(is_pending)).to_pylist())),
        step_changed=_count(other_step) > 0,
    )


def _is_released(
    names: pa.ChunkedArray, runs: pa.ChunkedArray, released: Mapping[str, int]
) -> pa.ChunkedArray:
    """Tell which inputs may run again: those released after the run that recorded them."""
    until = pa.array(list(released.values()), pa.int32())
    place = pc.index_in(names, value_set=pa.array(list(released), pa.string()))
    return pc.less_equal(runs, until.take(place)).fill_null(False)


def carried_text(row: Mapping[str, Any]) -> str:
    """Write the manifest's other columns of an input as the ledger has them."""
    return json.dumps(row, default=str, ensure_ascii=False)


def _differ(recorded: pa.ChunkedArray, current: pa.ChunkedArray | str) -> pa.ChunkedArray:
    """Tell where what is recorded is not what is so now; of what is not recorded, False."""
    return pc.not_equal(recorded, current).fill_null(False)


def _count(where: pa.ChunkedArray) -> int:
    return int(pc.sum(where).as_py() or 0)
