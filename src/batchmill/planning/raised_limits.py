"""Finds inputs that exceeded a limit which is higher now."""

from collections.abc import Mapping
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.errors import LedgerError
from batchmill.ledger.ledger import Ledger
from batchmill.options.failure_policy import FailurePolicy
from batchmill.planning.plan_file import PlanFile


def inputs_below_limits(ledger: Ledger, records: pa.Table, limits: FailurePolicy) -> set[str]:
    """Return the inputs that exceeded a limit of their run, and whose limit is higher now.

    Args:
        ledger: The ledger, which has the limits of the earlier runs.
        records: Its records, with at least the columns `input`, `outcome` and `run`.
        limits: The limits of the next run.

    Raises:
        StoreError: The ledger cannot be read.
    """
    exceeded = records.filter(pc.is_in(records["outcome"], value_set=pa.array(["timeout", "oom"])))
    policies = _policies_of(ledger, exceeded["run"].unique().to_pylist())
    rows = exceeded.select(["input", "outcome", "run"]).to_pylist()
    return {
        row["input"]
        for row in rows
        if row["run"] in policies and is_raised(row["outcome"], policies[row["run"]], limits)
    }


def is_raised(outcome: str, before: FailurePolicy, now: FailurePolicy) -> bool:
    """Return whether the limit behind an outcome, `timeout` or `oom`, is higher than before.

    >>> is_raised("timeout", FailurePolicy(timeout=10), FailurePolicy(timeout=0))
    True
    >>> is_raised("oom", FailurePolicy(memory_limit="1G"), FailurePolicy(memory_limit="500M"))
    False
    """
    if outcome == "timeout":
        limit, next_limit = before.timeout_seconds, now.timeout_seconds
    else:
        limit, next_limit = before.memory_bytes, now.memory_bytes
    # Without a limit, the machine was the limit.
    return limit is not None and (next_limit is None or next_limit > limit)


def _policies_of(ledger: Ledger, runs: list[int]) -> Mapping[int, FailurePolicy]:
    """Return the failure policy of each run whose plan still exists."""
    policies = {}
    for run in runs:
        plan = PlanFile(ledger, run)
        if ledger.store.exists(plan.settings_name):
            with suppress(LedgerError):  # `verify` reports a damaged plan. It stops no run.
                policy = plan.settings()["policy"]
                policies[run] = FailurePolicy(
                    timeout=policy["timeout"], memory_limit=policy["memory_limit"]
                )
    return policies
