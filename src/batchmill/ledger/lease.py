"""One writer for each dataset: a lease with a heartbeat, which works in any store.

    .batchmill/lease/000007.json     the seventh lease: who holds it, since when, the last beat

A lease is taken by making the next number's file, which only one of several contenders can do. Who
holds it rewrites the file every few seconds. A lease is over when it says so, when its process is
known to be dead, or when its file has not changed for a while by the watch of who wants the next.
"""

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from batchmill.errors import LedgerError, StoreError
from batchmill.ledger.ledger import FOLDER, Ledger

BEAT_SECONDS = 5.0
LAPSE_SECONDS = 20.0
_WAIT_SECONDS = 2.0
_LOOK_SECONDS = 1.0
LEASES = f"{FOLDER}/lease"


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who holds a lease. `beat` and `since` are seconds since 1970, by the holder's clock."""

    number: int
    token: str
    host: str
    machine: str
    pid: int
    started: str
    since: float
    beat: float
    ended: bool = False
    clean: bool = False

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(self.since))
        return f"process {self.pid} on {self.host}, since {since}"


class Lease:
    """The right to write to a dataset, for as long as it beats.

    `clean` tells whether the one before it left all tidy; `clean_end` is what the next is to know.
    """

    def __init__(self, ledger: Ledger, holder: Holder, *, clean: bool) -> None:
        self.clean = clean
        self.clean_end = False
        self._ledger = ledger
        self._holder = holder
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
        self._thread.start()

    @property
    def token(self) -> str:
        """What no other lease has."""
        return self._holder.token

    def check(self) -> None:
        """Raise LedgerError if somebody else has taken the dataset over."""
        latest = _latest(self._ledger)
        if latest is None or latest.token != self.token:
            raise LedgerError(
                f"{self._ledger.store.url}: this run was silent for so long that another has "
                f"taken over ({latest}). What it has committed stays."
            )

    def end(self) -> None:
        """Give the right up."""
        self._ended.set()
        self._thread.join()
        with suppress(StoreError):  # Then it lapses.
            end = replace(self._holder, ended=True, clean=self.clean_end, beat=time.time())
            _write(self._ledger, end)

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            with suppress(StoreError):  # The next beat may get through.
                _write(self._ledger, replace(self._holder, beat=time.time()))


@contextmanager
def lease(ledger: Ledger, *, wait: bool = False) -> Iterator[Lease]:
    """Hold a dataset for as long as the block.

    Raises LedgerError if somebody else holds it; with `wait`, waits for its end.
    """
    while True:
        before = latest = _latest(ledger)
        if latest is None or _is_over(ledger, latest):
            mine = _new_holder(1 + (latest.number if latest else 0))
            data = json.dumps(asdict(mine)).encode()
            if ledger.store.create(_name(mine.number), data):
                latest = _latest(ledger)
                if latest and latest.token == mine.token:
                    break
                # While we looked, others came and went, and removed the number that we have made.
                ledger.store.delete(_name(mine.number))
            continue  # Another contender was quicker: look at who it is.
        if not wait:
            raise LedgerError(_message(ledger.store.url, latest))
        time.sleep(_WAIT_SECONDS)
    _remove_earlier(ledger, mine)
    held = Lease(ledger, mine, clean=before is not None and before.clean)
    try:
        yield held
    finally:
        held.end()


def _remove_earlier(ledger: Ledger, mine: Holder) -> None:
    """Remove earlier leases, and what was being written of them and of this one."""
    names = [f"{LEASES}/{name}" for name in ledger.store.names(LEASES)]
    for name in [*names, *ledger.store.leftovers()]:
        number = name.removeprefix(f"{LEASES}/").lstrip(".").partition(".")[0]
        is_early = number.isdigit() and int(number) <= mine.number
        if name.startswith(LEASES) and is_early and name != _name(mine.number):
            ledger.store.delete(name)


def holder(ledger: Ledger) -> str | None:
    """Say who holds a dataset; None if nobody does, as far as one look can tell."""
    latest = _latest(ledger)
    if latest is None or latest.ended or _is_dead(latest):
        return None
    # Of a process that is here the kernel knows that it lives, however silent it is.
    return str(latest) if _is_here(latest) or not _looks_lapsed(latest) else None


def token_of(ledger: Ledger) -> str | None:
    """Return the token of a dataset's latest lease; None if there is none."""
    latest = _latest(ledger)
    return latest.token if latest else None


def is_held(ledger: Ledger, token: str) -> bool:
    """Tell whether the lease with this token is the latest, and not ended."""
    latest = _latest(ledger)
    return latest is not None and latest.token == token and not latest.ended


def check_free(ledger: Ledger) -> None:
    """Raise LedgerError if somebody holds a dataset."""
    latest = _latest(ledger)
    if latest and holder(ledger):
        raise LedgerError(_message(ledger.store.url, latest))


def _message(dataset: str, who: Holder) -> str:
    return (
        f"{dataset}: a run is going on there ({who}). Wait for its end (--wait does), or stop it."
    )


def _name(number: int) -> str:
    return f"{LEASES}/{number:06d}.json"


def _latest(ledger: Ledger) -> Holder | None:
    tries = 10
    while True:
        names = ledger.store.names(LEASES)
        if not names:
            return None
        try:
            return Holder(**json.loads(ledger.store.read(f"{LEASES}/{names[-1]}")))
        except StoreError:
            if names == ledger.store.names(LEASES):
                raise
        except (ValueError, TypeError) as error:
            tries -= 1
            if tries:  # It may be in the making.
                time.sleep(0.1)
                continue
            raise LedgerError(
                f"{ledger.store.place(f'{LEASES}/{names[-1]}')}: is no lease of this version. "
                "If no run is going on, remove it."
            ) from error


def _write(ledger: Ledger, who: Holder) -> None:
    ledger.store.write(_name(who.number), json.dumps(asdict(who)).encode())


def _is_over(ledger: Ledger, latest: Holder) -> bool:
    if latest.ended or _is_dead(latest):
        return True
    if _is_here(latest) or not _looks_lapsed(latest):
        return False
    # Clocks differ: only a file that stays as it is, by our own, belongs to nobody.
    deadline = time.monotonic() + LAPSE_SECONDS
    while time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        if _latest(ledger) != latest:
            return False
    return True


def _looks_lapsed(who: Holder) -> bool:
    return time.time() - who.beat > LAPSE_SECONDS


def _is_here(who: Holder) -> bool:
    return bool(who.machine) and who.machine == _machine()


def _is_dead(who: Holder) -> bool:
    """Tell whether a process of this machine is known to be no more."""
    return _is_here(who) and _started(who.pid) != who.started


def _machine() -> str:
    """Name the running system and the space that its pids are from; empty where nothing tells."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Return when a process began, so that its pid is not taken for another's; empty if dead."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _new_holder(number: int) -> Holder:
    now = time.time()
    return Holder(
        number=number,
        token=uuid.uuid4().hex,
        host=socket.gethostname(),
        machine=_machine(),
        pid=os.getpid(),
        started=_started(os.getpid()),
        since=now,
        beat=now,
    )
