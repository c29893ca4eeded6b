"""Decide for each input of a manifest whether and why a run executes it. Touches no file."""

import json
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core.ledger.state import has_result
from batchmill.core.manifest import Manifest
from batchmill.core.manifest.file_stats import MISSING_SIZE
from batchmill.core.planning.changed_files import FileChanges, has_other_size, has_other_time
from batchmill.core.storage.large_tables import Column
from batchmill.core.storage.remote import UNKNOWN_TIME

# Shared, because creating an encoder takes longer than encoding one row.
_JSON = json.JSONEncoder(default=str, ensure_ascii=False)

REASONS = ("new", "changed", "damaged", "retry", "limit", "forced")
# The reason of inputs with an earlier result whose file does not exist or cannot be looked up.
UNREADABLE = "unreadable"
# The reason of inputs whose outputs an earlier version of the step's code made, and that are kept.
ADOPTED = "adopted"
# The reasons that need an explanation. docs/reference/runs.md describes all of them.
MEANINGS = {
    "damaged": "an output file is missing or has another size",
    "retry": "requested by batchmill retry or verify --repair",
    "limit": "exceeded --timeout or --memory-limit, which is higher now",
    "quarantined": "failed earlier, and nothing changed; to execute it: batchmill retry",
    UNREADABLE: "its file cannot be found or looked up; its result stays",
    ADOPTED: "only the step's code or a library changed; its result is kept",
    "withdrawn": "no longer in the manifest and the tables; kept in the ledger without --prune",
}
# The decision about an input.
DECISIONS = pa.schema([("reason", pa.string()), ("is_touched", pa.bool_())])


@dataclass(frozen=True)
class Criteria:
    """The rules that decide, with an input's record, whether it is executed.

    Attributes:
        step_identity: The identity of the step to run.
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
        other_libraries: The numbers of the sets of libraries that count as a change.
        accepts_libraries: True if the user accepts `ok` outcomes of these sets.
    """

    step_identity: str
    _: KW_ONLY
    takes_rows: bool = False
    released: Mapping[str, int] = field(default_factory=dict)
    changes: FileChanges = FileChanges()
    below_limits: Set[str] = frozenset()
    forced_after: int | None = None
    adopted_steps: Collection[str] = ()
    other_libraries: Sequence[int] = ()
    accepts_libraries: bool = False


def decide(manifest: Manifest, done: pa.Table, contents: Column, criteria: Criteria) -> pa.Table:
    """Return the decisions about some inputs, with the columns of DECISIONS.

    Args:
        manifest: A part of the manifest.
        done: The record of each of its inputs, null without one.
        contents: The present content of each of its inputs, null if it was not read.
        criteria: The rules of the decision.
    """
    inputs = manifest.inputs
    names = inputs["input"].to_pylist()
    other_libraries = pa.array(criteria.other_libraries, pa.int32())
    has_other_libraries = pc.is_in(done["libraries"], value_set=other_libraries)
    is_adopted = _is_adopted(done, has_other_libraries, criteria)
    recorded_step = pc.if_else(is_adopted, criteria.step_identity, done["step"])
    is_other_size = has_other_size(done, inputs)
    is_other_time = has_other_time(done, inputs)
    has_same_content = pc.and_(
        pc.equal(done["content"], contents), pc.invert(is_other_size)
    ).fill_null(False)
    may_differ = pc.or_(is_other_time, pc.equal(inputs["mtime_ns"], UNKNOWN_TIME))
    is_other_file = pc.or_(is_other_size, pc.and_(may_differ, pc.invert(has_same_content)))
    is_changed = pc.or_(_differ(recorded_step, criteria.step_identity), is_other_file)
    is_changed = pc.or_(is_changed, pc.and_(has_other_libraries, pc.invert(is_adopted)))
    if criteria.takes_rows:
        rows = [encode_manifest_columns(row) for row in manifest.manifest_rows()]
        is_changed = pc.or_(is_changed, _differ(done["carried"], pa.array(rows, pa.string())))
    # The last run after which each input was released. Null without a release.
    until = pa.array([criteria.released.get(name) for name in names], pa.int32())
    is_released = pc.less_equal(done["run"], until).fill_null(False)
    # Null without `--force`.
    forced_after = pa.scalar(criteria.forced_after, pa.int32())
    masks = (
        _is_unreadable(manifest, done),
        # In the order of REASONS.
        pc.is_null(done["input"]),
        is_changed,
        _among(names, criteria.changes.damaged),
        is_released,
        _among(names, criteria.below_limits),
        pc.less_equal(done["run"], forced_after).fill_null(False),
    )
    is_quarantined = pc.and_(_differ(done["outcome"], "ok"), pc.invert(is_released))
    others = pc.if_else(is_quarantined, "quarantined", pc.if_else(is_adopted, ADOPTED, "unchanged"))
    reason = pc.case_when(pc.make_struct(*masks), UNREADABLE, *REASONS, others)
    return pa.table([reason, pc.and_(is_other_time, has_same_content)], schema=DECISIONS)


def _is_unreadable(manifest: Manifest, done: pa.Table) -> pa.ChunkedArray:
    """Return which inputs have a result, but no file that can be looked up."""
    return pc.and_(has_result(done), pc.equal(manifest.inputs["size"], MISSING_SIZE))


def _among(names: Sequence[str], chosen: Set[str]) -> pa.Array:
    # A set is searched in the same time for each part of the manifest, however large it is.
    return pa.array([name in chosen for name in names], pa.bool_())


def _is_adopted(
    done: pa.Table, has_other_libraries: pa.ChunkedArray, criteria: Criteria
) -> pa.ChunkedArray:
    """Return which records are `ok` outcomes of earlier code or libraries that are accepted."""
    steps = pa.array(sorted(criteria.adopted_steps), pa.string())
    is_earlier = pc.is_in(done["step"], value_set=steps)
    if criteria.accepts_libraries:
        is_own = pc.equal(done["step"], criteria.step_identity)
        is_earlier = pc.or_(is_earlier, pc.and_(is_own, has_other_libraries))
    return pc.and_(is_earlier, pc.equal(done["outcome"], "ok")).fill_null(False)


def _differ(recorded: pa.ChunkedArray, current: pa.ChunkedArray | str) -> pa.ChunkedArray:
    """Return a mask of the recorded values that differ; False if nothing is recorded."""
    return pc.not_equal(recorded, current).fill_null(False)


def encode_manifest_columns(row: Mapping[str, Any]) -> str:
    """Return an input's other manifest columns as the JSON text that the ledger stores."""
    return _JSON.encode(row) if row else "{}"
