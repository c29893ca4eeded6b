"""Compare the step of a job with the steps that made the results of its dataset."""

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.errors import OptionError
from batchmill.ledger.ledger import Ledger
from batchmill.planning.job import Job
from batchmill.planning.plan import Plan
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
