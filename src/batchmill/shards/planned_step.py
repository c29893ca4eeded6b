"""Load the step of a run on the machine that executes a shard."""

from typing import Any, NamedTuple

from batchmill.layout import PICKLED_STEP
from batchmill.ledger.ledger import Ledger
from batchmill.planning.run_spec import RunSpec
from batchmill.security.allowlist import check_step
from batchmill.step.load import Step, load_step
from batchmill.step.value.shipping import unpickle_step


class LoadedStep(NamedTuple):
    """A step as this machine has it, and its description in the run's plan."""

    step: Step
    planned: Any


def pickled_step_name(ledger: Ledger, run: int) -> str:
    """Return the name of the file with a step that other processes cannot import."""
    return f"{ledger.run_folder(run)}/{PICKLED_STEP}"


def load_planned_step(ledger: Ledger, spec: RunSpec, pickle_digest: str) -> LoadedStep:
    """Load the step of a run.

    Args:
        ledger: The ledger.
        spec: The settings of the run.
        pickle_digest: The digest of the step's pickle, from the process that holds the run. Empty
            if the step is imported. Then no pickle is read.

    Returns:
        The step.

    Raises:
        StepError: The step cannot be loaded on this machine.
        OptionError: The step may not be run here.
    """
    planned = ledger.steps.read(spec.identity)
    if not pickle_digest:
        step = load_step(spec.step, spec.params, search=spec.search, file_columns=spec.file_columns)
        return LoadedStep(step, planned or step.description)
    check_step(spec.step)
    pickled = ledger.store.read(pickled_step_name(ledger, spec.run))
    step = unpickle_step(pickled, pickle_digest, planned or {}, search=spec.search)
    return LoadedStep(step, planned)
