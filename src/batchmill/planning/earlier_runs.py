"""Compare a job with the earlier runs of its dataset: their steps, and their limits."""

from collections.abc import Mapping
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.errors import LedgerError, OptionError
from batchmill.ledger.ledger import Ledger
from batchmill.options.failure_policy import FailurePolicy
from batchmill.planning.job import Job
from batchmill.planning.plan import Plan
from batchmill.planning.plan_file import PlanFile
from batchmill.sizes import counted
from batchmill.step.fingerprint import differences, has_same_settings
from batchmill.step.load import Step


def check_same_step(job: Job, records: pa.Table, ledger: Ledger) -> None:
    """Raise OptionError if all results of the dataset are of other steps.

    The output is probably a mistake, and the run would replace good results. Another version of the
    same step, or other params, are no mistake.
    """
    identities = records["step"].filter(pc.equal(records["outcome"], "ok"))
    described = [ledger.steps.read(one) for one in pc.unique(identities).to_pylist()]
    steps = sorted({one["ref"] for one in described if one})
    if steps and job.step not in steps:
        raise OptionError(
            f"--output {job.output}: contains {counted(len(identities), 'result')} of the step "
            f"{steps[0]}, and this run's step is {job.step}. Choose another output. To replace the "
            "results, add --replace-step."
        )


def accepted_steps(records: pa.Table, ledger: Ledger, step: Step) -> set[str]:
    """Return the earlier versions of the step that differ only in their code.

    Raises:
        OptionError: All versions with an `ok` outcome differ in more, so none can be accepted.
    """
    steps, reason = earlier_versions(records, ledger, step)
    if reason:
        raise OptionError(
            f"--accept-change: no outcome can be kept, because {reason}. The option accepts only a "
            "change of the step's code. Drop it to execute the inputs again."
        )
    return steps


def earlier_versions(records: pa.Table, ledger: Ledger, step: Step) -> tuple[set[str], str]:
    """Return the versions with an `ok` outcome that differ from the step only in their code.

    If all versions differ in more, also return what else differs.
    """
    identities = pc.unique(records["step"].filter(pc.equal(records["outcome"], "ok"))).to_pylist()
    described = {one: ledger.steps.read(one) for one in identities if one != step.identity}
    found = {
        one
        for one, before in described.items()
        if before and has_same_settings(before, step.description)
    }
    if not described or found or step.identity in identities:
        return found, ""
    before = next(filter(None, described.values()), None)
    return found, differences(before, step.description)[0] if before else "its step is unknown"


def step_changes(ledger: Ledger, step: Step, plan: Plan) -> list[str]:
    """Describe the changes since the step that has the most records."""
    for identity in plan.stale_steps:
        before = ledger.steps.read(identity)
        if before:
            return differences(before, step.description)
    return []


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
