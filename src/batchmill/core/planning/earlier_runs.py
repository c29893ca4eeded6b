"""Compare a job with the earlier runs of its dataset: their steps, and their limits."""

from collections.abc import Mapping
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.state import State
from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.planning.changed_code import ChangeCheck
from batchmill.core.planning.job import Job
from batchmill.core.planning.plan import Plan
from batchmill.core.planning.plan_file import PlanFile
from batchmill.core.sizes import counted
from batchmill.core.storage.large_tables import count_values
from batchmill.core.user_step.fingerprint import differences, has_same_settings
from batchmill.core.user_step.load import Step
from batchmill.errors import LedgerError, OptionError


class EarlierSteps:
    """The steps that have records in a dataset.

    Args:
        ledger: The ledger of the dataset.
        state: Its state.

    Raises:
        LedgerError, StoreError: The description of a step cannot be read.
    """

    def __init__(self, ledger: Ledger, state: State) -> None:
        records = state.records(["step", "outcome"])
        self._results = count_values(records["step"].filter(pc.equal(records["outcome"], "ok")))
        identities = records["step"].unique().to_pylist()
        self._described = {identity: ledger.read_step(identity) for identity in identities}

    def check_same(self, job: Job) -> None:
        """Raise OptionError if all results of the dataset are of other steps.

        The output is probably a mistake, and the run would replace good results. Another version of
        the same step, or other params, are no mistake.
        """
        described = [self._described[identity] for identity in self._results]
        steps = sorted({description["ref"] for description in described if description})
        if steps and job.step not in steps:
            raise OptionError(
                f"--output {job.output}: contains {counted(self._results.total(), 'result')} of "
                f"the step {steps[0]}, and this run's step is {job.step}. Choose another output. "
                "To replace the results, add --replace-step."
            )

    def accepted(self, step: Step) -> frozenset[str]:
        """Return the earlier versions of the step that differ only in their code.

        Raises:
            OptionError: All versions with an `ok` outcome differ in more, so none can be accepted.
        """
        check = self.versions_of(step)
        if check.reason:
            raise OptionError(
                f"--accept-change: no outcome can be kept, because {check.reason}. The option "
                "accepts only a change of the step's code. Drop it to execute the inputs again."
            )
        return check.steps

    def versions_of(self, step: Step) -> ChangeCheck:
        """Return the versions with an `ok` outcome that differ from the step only in their code.

        If all versions differ in more, the `reason` is what else differs.
        """
        others = {key: self._described[key] for key in self._results if key != step.identity}
        versions = frozenset(
            key
            for key, before in others.items()
            if before and has_same_settings(before, step.description)
        )
        if not others or versions or step.identity in self._results:
            return ChangeCheck(steps=versions)
        before = next(filter(None, others.values()), None)
        what = differences(before, step.description)[0] if before else "its step is unknown"
        return ChangeCheck(reason=what)

    def changes(self, step: Step, plan: Plan) -> list[str]:
        """Describe the changes since the step that has the most records."""
        described = filter(None, map(self._described.get, plan.stale_steps))
        before = next(described, None)
        return differences(before, step.description) if before else []


def inputs_below_limits(ledger: Ledger, state: State, limits: FailurePolicy) -> set[str]:
    """Return the inputs that exceeded a limit of their run, and whose limit is higher now.

    Args:
        ledger: The ledger, which has the limits of the earlier runs.
        state: Its state.
        limits: The limits of the next run.

    Raises:
        StoreError: The ledger cannot be read.
    """
    records = state.records(["input", "outcome", "run"])
    exceeded = records.filter(pc.is_in(records["outcome"], value_set=pa.array(["timeout", "oom"])))
    policies = _policies_of(ledger, exceeded["run"].unique().to_pylist())
    return {
        row["input"]
        for row in exceeded.to_pylist()
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
        # The plan may have been removed. `verify` reports a damaged plan. It stops no run.
        with suppress(LedgerError):
            options = PlanFile(ledger, run).settings()["options"]
            policies[run] = FailurePolicy(
                timeout=options["timeout"], memory_limit=options["memory_limit"]
            )
    return policies
