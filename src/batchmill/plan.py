"""Decide what a run has to do: manifest + ledger + step -> plan. Touches nothing."""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd
import pyarrow as pa

from batchmill.manifest import Manifest

REASONS = ("new", "changed", "retry")
PLANNED_COLUMNS = ("input", "outcome", "size", "mtime_ns", "step")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run has to do.

    `pending` has a row for each input to execute: `position` (its row in the manifest), `input`,
    `path`, `size` (bytes, -1 if there is no such file), `mtime_ns` and `reason` (one of REASONS).
    `counts` says how many inputs are new, changed, to be retried, quarantined, unchanged,
    withdrawn; `step_changed` whether "changed" is for the step's sake.
    """

    pending: pa.Table
    counts: Mapping[str, int]
    step_changed: bool

    def first(self, reason: str, count: int) -> list[str]:
        """Return the names of the first inputs that are pending for this reason."""
        chosen = self.pending.filter(pa.compute.field("reason") == reason)
        names: list[str] = chosen.column("input").slice(0, count).to_pylist()
        return names


def make_plan(manifest: Manifest, records: pa.Table, step_identity: str) -> Plan:
    """Compare a manifest's inputs with the ledger's records (at least PLANNED_COLUMNS of them)."""
    inputs = manifest.inputs.to_pandas()
    inputs["position"] = range(len(inputs))
    known = records.select(list(PLANNED_COLUMNS)).to_pandas()
    joined = inputs.merge(known, on="input", how="left", suffixes=("", "_done"))

    is_new = joined["outcome"].isna()
    other_step = ~is_new & (
        joined["step_done" if "step_done" in joined else "step"] != step_identity
    )
    other_file = ~is_new & (
        (joined["size"] != joined["size_done"]) | (joined["mtime_ns"] != joined["mtime_ns_done"])
    )
    changed = other_step | other_file
    retry = ~is_new & ~changed & (joined["outcome"] != "ok")
    reason = pd.Series(pd.NA, index=joined.index, dtype="object")
    reason[is_new], reason[changed], reason[retry] = "new", "changed", "retry"
    joined["reason"] = reason

    todo = joined[reason.notna()]
    columns = ["position", "input", "path", "size", "mtime_ns", "reason"]
    pending = pa.Table.from_pandas(
        todo[columns].reset_index(drop=True), schema=_PENDING, preserve_index=False
    ).replace_schema_metadata(None)
    counts = {
        "new": int(is_new.sum()),
        "changed": int(changed.sum()),
        "retry": int(retry.sum()),
        "quarantined": 0,
        "unchanged": int(reason.isna().sum()),
        "withdrawn": int((~known["input"].isin(inputs["input"])).sum()),
    }
    return Plan(pending=pending, counts=counts, step_changed=bool(other_step.any()))


_PENDING = pa.schema(
    [
        ("position", pa.int64()),
        ("input", pa.string()),
        ("path", pa.string()),
        ("size", pa.int64()),
        ("mtime_ns", pa.int64()),
        ("reason", pa.string()),
    ]
)
