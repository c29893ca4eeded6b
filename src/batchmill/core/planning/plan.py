"""Decide what a run has to do: manifest + state + step -> plan. Pure: it touches no file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core.ledger.state import COPIED, LIBRARIES, MISSING, WITHDRAWN
from batchmill.core.manifest import Manifest
from batchmill.core.planning.decisions import (
    ADOPTED,
    DECISIONS,
    REASONS,
    UNREADABLE,
    Criteria,
    decide,
)
from batchmill.core.storage.large_tables import Column, collected, count_values, select, take
from batchmill.core.storage.name_search import rows_of

PLANNED_COLUMNS = (*COPIED, "outputs", "result_run", "absence", LIBRARIES)
_ABSENCE = pa.schema([(name, pa.string()) for name in ("input", "absence", "before")])
_WITHDRAWN, _PRESENT = pa.scalar(WITHDRAWN, pa.string()), pa.scalar(None, pa.string())


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The work of a run.

    Attributes:
        pending: One row per input to execute: `position` (its row in the manifest), `input`, `size`
            (bytes, -1 if there is no such file), `mtime_ns`, `etag` and `reason` (one of REASONS).
        withdrawn: The recorded inputs that the manifest no longer lists.
        touched: Inputs whose time changed while their content stayed the same.
        adopted: Inputs whose outputs an earlier version of the step's code or of its libraries
            made. The user accepts them for the present ones.
        unreadable: Inputs whose file cannot be looked up, although they have a result. They are not
            executed, so the result stays.
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
    withdrawn: pa.ChunkedArray
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
        rows = pc.indices_nonzero(pc.equal(self.pending["reason"], reason)).slice(0, count)
        return list(self.pending["input"].take(rows).to_pylist())


class Matched(NamedTuple):
    """The records of a ledger, compared with the inputs of a manifest.

    Attributes:
        done: The record of each input, a row of nulls without one.
        unlisted: The records of inputs that the manifest does not list.
    """

    done: pa.Table
    unlisted: pa.Table


def match_records(records: pa.Table, inputs: pa.Table) -> Matched:
    """Find the record of each input, and the records without an input.

    Args:
        records: The ledger's records, with at least PLANNED_COLUMNS. If the step takes rows, also
            `carried`.
        inputs: The manifest's inputs.
    """
    rows = rows_of(inputs["input"], records["input"])
    is_unlisted = np.ones(len(records), bool)
    is_unlisted[rows.drop_null().to_numpy()] = False
    # The parts of a plan follow the order of the manifest, so the records are sorted once.
    return Matched(take(records, rows), select(records, is_unlisted))


def make_plan(manifest: Manifest, matched: Matched, criteria: Criteria) -> Plan:
    """Compare the inputs of a manifest with the records of a ledger.

    Args:
        manifest: The checked manifest.
        matched: The records, as `match_records` returns them for this manifest.
        criteria: The rules of the decision.

    Returns:
        The plan.
    """
    names, done, unlisted = manifest.inputs["input"], matched.done, matched.unlisted
    contents = criteria.changes.contents
    if contents is None:
        contents = pa.nulls(len(manifest), pa.string())
    decided = collected(
        (
            decide(part, done.slice(start, len(part)), contents.slice(start, len(part)), criteria)
            for start, part in manifest.slices()
        ),
        DECISIONS,
    )
    reason = decided["reason"]
    is_unreadable, is_adopted = pc.equal(reason, UNREADABLE), pc.equal(reason, ADOPTED)
    is_pending = pc.is_in(reason, value_set=pa.array(REASONS))
    is_done = pc.invert(is_pending)
    is_touched = pc.and_(decided["is_touched"], is_done)
    # A file that was left out because it is too young still exists.
    is_young = pc.is_in(unlisted["input"], value_set=manifest.too_young)
    withdrawn = unlisted["input"].filter(pc.invert(is_young))
    has_other_step = pc.not_equal(done["step"], criteria.step_identity)
    counted = count_values(reason)
    resolved = pc.if_else(is_unreadable, MISSING, done["outcome"])
    planned = manifest.inputs.append_column("position", pa.array(np.arange(len(manifest))))
    return Plan(
        pending=select(planned.append_column("reason", reason), is_pending),
        withdrawn=withdrawn,
        touched=_chosen(names, is_touched),
        adopted=_chosen(names, is_adopted),
        unreadable=_chosen(names, is_unreadable),
        absences=_changed_absences(
            (names, pc.if_else(is_unreadable, MISSING, _PRESENT), done["absence"]),
            (unlisted["input"], pc.if_else(is_young, _PRESENT, _WITHDRAWN), unlisted["absence"]),
        ),
        counts={
            **{name: counted[name] for name in (*REASONS, "quarantined", "unchanged")},
            "withdrawn": len(withdrawn),
            **{name: counted[name] for name in (UNREADABLE, ADOPTED) if counted[name]},
        },
        resolved=dict(count_values(resolved.filter(is_done))),
        stale_steps=dict(count_values(done["step"].filter(has_other_step)).most_common()),
    )


def _changed_absences(*columns: Sequence[Column]) -> pa.Table:
    """Return `input` and `absence` of the records whose absence has changed.

    Args:
        *columns: The input, the absence and the recorded absence of some records each.
    """
    both = pa.concat_tables([pa.table([*some], schema=_ABSENCE) for some in columns])
    has_changed = pc.not_equal(both["absence"].fill_null(""), both["before"].fill_null(""))
    return select(both.select(["input", "absence"]), has_changed)


def _chosen(names: pa.ChunkedArray, mask: pa.ChunkedArray) -> pa.ChunkedArray:
    return select(pa.table([names], ["input"]), mask)["input"]
