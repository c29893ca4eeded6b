"""The files of a dataset's leases, and the process that each file describes.

The name of a file is the number of its lease.
"""

import os
import re
import socket
import time
import uuid
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field

from batchmill.core.layout import LEASES
from batchmill.core.storage import Store
from batchmill.errors import LedgerError, StoreError

_READS = 10
_READ_AGAIN_SECONDS = 0.1
_NUMBER = re.compile("([0-9]+)[.]json")
# A zombie, or a process that is about to disappear.
_DEAD_STATES = ("Z", "X")


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("has characters that cannot be printed")
    return text


_Text = Annotated[str, AfterValidator(_printable)]
# Later times than the year 5000 are damage, and `time.localtime` does not accept all of them.
_Time = Annotated[float, Field(ge=0, lt=1e11, allow_inf_nan=False)]


class Holder(BaseModel, frozen=True, strict=True, extra="forbid"):
    """The process that holds a lease.

    Attributes:
        number: The number of the lease.
        token: A random text that no other lease has.
        host: The name of the host, for messages.
        machine: The running system and its process namespace; empty if unknown.
        pid: The id of the process.
        started: The start time of the process. A later process with the same id has another one.
            Empty if unknown.
        since: When the process acquired the lease, in seconds since 1970 by its own clock.
        beat: The time of the last heartbeat, on the same clock.
        ended: True if the process has released the lease.
        clean: True if the process left no work for the next holder to finish.
    """

    number: int
    token: _Text
    host: _Text
    machine: _Text
    pid: Annotated[int, Field(gt=0, lt=2**31)]
    started: _Text
    since: _Time
    beat: _Time
    ended: bool = False
    clean: bool = False

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(self.since))
        return f"process {self.pid} on {self.host}, since {since}"

    @property
    def is_alive(self) -> bool | None:
        """True if the process is alive, False if not. None if only its heartbeats can show it.

        That is the case on another machine, and for a process whose start time cannot be read.
        """
        if not self.machine or self.machine != _machine():
            return None
        try:
            os.kill(self.pid, 0)  # Signal 0 sends nothing.
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # The process exists, and another user started it.
        state, started = _read_stat(self.pid)
        if state in _DEAD_STATES:
            return False
        return started == self.started if started and self.started else None

    def as_json(self) -> bytes:
        """Return the content of the lease's file."""
        return self.model_dump_json().encode()


def this_process(number: int) -> Holder:
    """Return this process as the holder of a new lease."""
    now = time.time()
    return Holder(
        number=number,
        token=uuid.uuid4().hex,
        host=socket.gethostname(),
        machine=_machine(),
        pid=os.getpid(),
        started=_read_stat(os.getpid())[1],
        since=now,
        beat=now,
    )


def _machine() -> str:
    """Return the running system and its process namespace; empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _read_stat(pid: int) -> tuple[str, str]:
    """Return the state and the start time of a process; empty if they cannot be read.

    Some systems hide the processes of other users (the mount option `hidepid` of /proc).
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", ""
    # The start time is in clock ticks since boot.
    return fields[0], fields[19]


class LeaseFiles:
    """The files of a dataset's leases.

    Every method raises StoreError if the store cannot be read or written.

    Args:
        store: The store of the dataset.

    Attributes:
        store: The store of the dataset.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    def latest(self) -> Holder | None:
        """Return the holder of the latest lease; None if there is no lease.

        Raises:
            LedgerError: There is a damaged or foreign file.
        """
        reads = 0
        while True:
            numbers = self._numbers()
            if not numbers:
                return None
            try:
                return self._read(numbers[-1])
            except StoreError:
                if numbers == self._numbers():
                    raise
            except ValueError as error:
                reads += 1
                if reads == _READS:
                    raise self._foreign(_name(numbers[-1])) from error
                time.sleep(_READ_AGAIN_SECONDS)  # Another process may be writing the file.

    def is_unchanged(self, earlier: Holder) -> bool:
        """Return whether the file of a lease still has this content."""
        try:
            return self._read(earlier.number) == earlier
        except (StoreError, ValueError):
            return False

    def create(self, holder: Holder) -> bool:
        """Write the file of a new lease. Return False if it exists."""
        return self.store.create(_name(holder.number), holder.as_json())

    def write(self, holder: Holder) -> None:
        """Replace the file of a lease."""
        self.store.write(_name(holder.number), holder.as_json())

    def delete(self, holder: Holder) -> None:
        """Delete the file of a lease."""
        self.store.delete(_name(holder.number))

    def delete_earlier(self, holder: Holder) -> None:
        """Delete the files of earlier leases, and the unfinished files up to this lease."""
        names = [f"{LEASES}/{name}" for name in self.store.names(LEASES)]
        for name in [*names, *self.store.leftovers()]:
            number = name.removeprefix(f"{LEASES}/").lstrip(".").partition(".")[0]
            is_early = number.isdigit() and int(number) <= holder.number
            if name.startswith(LEASES) and is_early and name != _name(holder.number):
                self.store.delete(name)

    def _numbers(self) -> list[int]:
        """Return the numbers of all leases, in order.

        Raises:
            LedgerError: There is another file. Its name could hide the leases of later runs.
        """
        numbers = []
        for name in self.store.names(LEASES):
            if name.startswith("."):
                continue  # A file system or a desktop may write such files.
            match = _NUMBER.fullmatch(name)
            if not match or _name(int(match[1])) != f"{LEASES}/{name}":
                raise self._foreign(f"{LEASES}/{name}")
            numbers.append(int(match[1]))
        return sorted(numbers)

    def _read(self, number: int) -> Holder:
        """Return the holder of a lease. Raises ValueError if the file is damaged."""
        holder = Holder.model_validate_json(self.store.read(_name(number)))
        if holder.number != number:
            raise ValueError(f"not the content of lease {number}")
        return holder

    def _foreign(self, name: str) -> LedgerError:
        return LedgerError(
            f"{self.store.url_of(name)}: is damaged, or is not a lease of this version of "
            "batchmill. If no run is active, remove the file."
        )


def _name(number: int) -> str:
    return f"{LEASES}/{number:06d}.json"
