"""Look, on a machine that is to run shards, whether it could: before any work is begun there."""

import sys
import uuid
from dataclasses import dataclass

from batchmill.errors import BatchmillError, StoreError
from batchmill.ledger.lease import read_token
from batchmill.ledger.ledger import Ledger
from batchmill.planning.run_spec import first_input, read_work
from batchmill.step.load import load_step
from batchmill.storage import is_url, open_store, remote
from batchmill.storage.local import STAGING

# Ray's way to get a user's own modules to all machines.
_BRING = '--runtime-env \'{"working_dir": "."}\''
_SHARED = (
    "All machines must see the same: put it on a file system that they share, or give a URL, as "
    "s3://bucket/dataset."
)
_REACHABLE = "Put the inputs where all machines see them, or give them as URLs."


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What a machine needs to know to tell whether it could run shards of a run.

    `token` is that of the run's lease: who reads the same looks at the same dataset.
    """

    dataset: str
    run: int
    token: str


def faults_here(probe: Probe) -> list[str]:
    """Return why this machine cannot run shards, each with what to do about it; none: it can."""
    try:
        ledger = Ledger(open_store(probe.dataset))
        token = read_token(ledger)
    except BatchmillError as error:
        return [f"the dataset cannot be reached: {error}"]
    if token != probe.token:
        return [f"the dataset {probe.dataset} is not there, or is another one. {_SHARED}"]
    faults = [_cannot_write(ledger), _cannot_open(ledger, probe.run), _no_step(ledger, probe.run)]
    return [fault for fault in faults if fault]


def _cannot_write(ledger: Ledger) -> str:
    name = f"{STAGING}/probe-{uuid.uuid4().hex[:12]}"
    try:
        ledger.store.write(name, b"")
        ledger.store.delete(name)
    except StoreError as error:
        return f"the dataset cannot be written to: {error}"
    return ""


def _cannot_open(ledger: Ledger, run: int) -> str:
    """Say why the first input that there was when the run was planned cannot be opened."""
    place = first_input(ledger, run)
    if place is None:
        return ""
    try:
        if is_url(place):
            found = remote.stat(place) is not None
        else:
            with open(place, "rb") as file:
                file.read(1)
            found = True
    except (OSError, StoreError) as error:
        return f"the input {place} cannot be opened: {_reason(error)}. {_REACHABLE}"
    return "" if found else f"the input {place} is not there. {_REACHABLE}"


def _reason(error: OSError | StoreError) -> str:
    text = error.reason if isinstance(error, StoreError) else error.strerror or str(error)
    return text.rstrip(".")


def _no_step(ledger: Ledger, run: int) -> str:
    work = read_work(ledger, run)
    try:
        step = load_step(work.step, work.params, search=work.search)
    except BatchmillError as error:
        return f"{error} Or have Ray bring it: {_BRING}."
    here = (ledger.steps.read(work.identity) or {}).get("sources", {})
    there = step.description["sources"]
    # What one machine has and the other has not may be an import that is optional.
    others = [name for name in there.keys() & here.keys() if there[name] != here[name]]
    if others:
        file = getattr(sys.modules.get(others[0]), "__file__", None)
        return (
            f"the source of {', '.join(others)} is not what it is here ({file}). Install the same "
            f"on all machines, or have Ray bring it: {_BRING}."
        )
    return ""
