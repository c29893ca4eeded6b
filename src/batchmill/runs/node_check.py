"""Checks that a machine can run shards, before it gets any."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from batchmill.core.layout import STAGING
from batchmill.core.ledger.lease import read_token
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.planning.run_spec import read_spec, some_inputs
from batchmill.core.storage import is_url, open_store, remote
from batchmill.core.user_step.compare_with_plan import differences_from_plan
from batchmill.errors import BatchmillError, StoreError
from batchmill.runs.shards.shard_inputs import load_planned_step

# Ray copies a user's own modules to all machines with this option.
_BRING = '--runtime-env \'{"working_dir": "."}\''
_SHARED = (
    "All machines must have access to the same dataset. Put it on a shared file system, or give a "
    "URL such as s3://bucket/dataset."
)
_INPUTS = 8
_REACHABLE = "Put the inputs on a shared file system, or give them as URLs."


@dataclass(frozen=True, kw_only=True)
class Probe:
    """The data that a machine needs to check whether it can run shards of a run.

    The `token` of the run's lease identifies the dataset: a machine that reads the same token has
    access to the same dataset. `pickle_digest` is that of the shards.
    """

    dataset: str
    run: int
    token: str
    pickle_digest: str = ""


def faults_here(probe: Probe) -> list[str]:
    """Return the reasons why this machine cannot run shards; empty if it can.

    Each reason says how to fix it.
    """
    try:
        ledger = Ledger(open_store(probe.dataset))
        token = read_token(ledger)
    except BatchmillError as error:
        return [f"the dataset cannot be reached: {error}"]
    if token != probe.token:
        return [f"the dataset {probe.dataset} is missing, or is a different one. {_SHARED}"]
    inputs = some_inputs(ledger, probe.run, _INPUTS)
    faults = [_cannot_write(ledger), _cannot_open(inputs), _no_step(ledger, probe)]
    return [fault for fault in faults if fault]


def first_fault(probe: Probe) -> str:
    """Return a reason why this machine cannot run shards; "" if it can.

    A machine that joins during a run may get a shard before it is probed. So each process that
    runs shards calls this function. It remembers a probe that it has passed.
    """
    if probe not in _passed:
        faults = faults_here(probe)
        if faults:
            return faults[0]
        _passed.add(probe)
    return ""


# The probes that this process has passed.
_passed: set[Probe] = set()


def _cannot_write(ledger: Ledger) -> str:
    name = f"{STAGING}/probe-{uuid.uuid4().hex[:12]}"
    try:
        ledger.store.write(name, b"")
        ledger.store.delete(name)
    except StoreError as error:
        return f"the dataset cannot be written to: {error}"
    return ""


def _cannot_open(places: Sequence[str]) -> str:
    """Return why none of some inputs can be opened; "" if one can, or without inputs.

    One of them may have been deleted since the run was planned. That is not the machine's fault.
    """
    faults = []
    for place in places:
        fault = _fault_of(place)
        if not fault:
            return ""
        faults.append(fault)
    return f"the input {places[0]} {faults[0]}. {_REACHABLE}" if faults else ""


def _fault_of(place: str) -> str:
    try:
        if is_url(place):
            return "" if remote.stat(place) is not None else "does not exist"
        with open(place, "rb") as file:
            file.read(1)
    except (OSError, StoreError) as error:
        why = error.reason if isinstance(error, StoreError) else error.strerror or str(error)
        return f"cannot be opened: {why.rstrip('.')}"
    return ""


def _no_step(ledger: Ledger, probe: Probe) -> str:
    spec = read_spec(ledger, probe.run)
    try:
        step, planned = load_planned_step(ledger, spec, probe.pickle_digest)
    except BatchmillError as error:
        return f"{error} Or let Ray copy it: {_BRING}."
    texts = differences_from_plan(step, planned)
    if texts:
        return (
            f"{' and '.join(texts)} differs from the run's version. Install the same version on "
            f"all machines, or let Ray copy it: {_BRING}."
        )
    return ""
