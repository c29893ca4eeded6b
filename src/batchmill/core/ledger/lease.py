"""A lease with a heartbeat gives each dataset a single writer. It works in any store.

    .batchmill/lease/000007.json     the seventh lease: its holder, its start, the last heartbeat

A process acquires the lease when it creates the file with the next number. The store lets only one
contender create it. The holder rewrites its file every few seconds. A lease has ended when its
file says so, or when its process is known to be dead. It has expired when its file does not change
for a while, measured by the clock of the contender.

Why two processes never both change the dataset: a heartbeat writes the file, then finds its lease
to be the latest. A contender creates the next lease, then finds the file as it was `LAPSE_SECONDS`
ago. Both can only succeed if the heartbeat was written before these `LAPSE_SECONDS`. The holder
stops when half of them have passed since it began to write its last successful heartbeat.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial

from batchmill.core.ledger.lease_files import Holder, LeaseFiles, this_process
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.storage import in_threads, open_store
from batchmill.core.storage.store import no_check
from batchmill.errors import LedgerError, StoreError

BEAT_SECONDS = 5.0
LAPSE_SECONDS = 20.0
_WAIT_SECONDS = 1.0
_POLL_SECONDS = 1.0
# If the store responds so slowly that this number of heartbeats in turn are late, the run ends.
_HEARTBEATS = 3

# The tokens of the leases that this process had. If the store failed, their files do not say so.
_given_up: set[str] = set()


class Wait:
    """Actions during and after the wait for a lease. The base class does nothing."""

    def begin(self) -> None:
        """Called every few seconds during the wait. An error ends the wait."""

    def end(self) -> None:
        """Called once after the wait, when this process holds the lease."""


class Lease:
    """The exclusive right to write to a dataset, kept alive by a heartbeat.

    Args:
        files: The files of the leases, in a store without a check of the lease.
        holder: This process, as the file of the lease describes it.
        clean: True if the previous holder left no work to finish.
        has_waited: True if another process held the lease before.
        begun: When the creation of the file of the lease began, as `_uptime` returns it.

    Attributes:
        clean: True if the previous holder left no work to finish.
        has_waited: True if another process held the lease before.
        clean_end: True if this holder leaves no work to finish. Set it before `end`.
    """

    def __init__(
        self, files: LeaseFiles, holder: Holder, *, clean: bool, has_waited: bool, begun: float
    ) -> None:
        self.clean = clean
        self.has_waited = has_waited
        self.clean_end = False
        self._files = files
        self._holder = holder
        self._confirmed = begun
        self._lost: LedgerError | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
        self._thread.start()

    @property
    def token(self) -> str:
        """A random text that no other lease has."""
        return self._holder.token

    def check(self) -> None:
        """Send a heartbeat, and check that this process still holds the lease.

        No other process can acquire the lease before `LAPSE_SECONDS` have passed since this call.

        Raises:
            LedgerError: Another process has acquired the lease.
            StoreError: The lease cannot be read or written.
        """
        begun = _uptime()
        self._files.write(self._holder.model_copy(update={"beat": time.time()}))
        # The write may have taken so long that the lease has expired. So this is checked after it.
        latest = self._files.latest()
        if latest is None or latest.token != self.token:
            self._lost = LedgerError(
                f"{self._files.store.url}: another process has taken over the dataset ({latest}), "
                "because this run sent no heartbeat for too long. Its committed outcomes stay."
            )
            raise self._lost
        self._confirmed = begun

    def ensure(self) -> None:
        """Check that this process still holds the lease. If the last heartbeat is old, send one.

        A process may be suspended, and continue when another one holds the lease. The store calls
        this method before each change.

        Raises:
            LedgerError: Another process has acquired the lease.
            StoreError: The lease cannot be read or written, or the store responds too slowly.
        """
        if self._lost:
            raise self._lost
        for _ in range(_HEARTBEATS):
            if self._is_recent:
                return
            self.check()
        if not self._is_recent:
            raise StoreError(
                self._files.store.url,
                f"needs more than {LAPSE_SECONDS / 2:g} s for a heartbeat of the lease, so another "
                "run could take over. Run the same command again when the store responds faster.",
                general=True,
            )

    @property
    def _is_recent(self) -> bool:
        return _uptime() - self._confirmed <= LAPSE_SECONDS / 2

    def end(self) -> None:
        """Release the lease, and delete the files of earlier ones."""
        self._ended.set()
        try:
            self._thread.join()
            state = {"ended": True, "clean": self.clean_end, "beat": time.time()}
            end = self._holder.model_copy(update=state)
            changes = [
                partial(self._files.write, end),
                partial(self._files.delete_earlier, self._holder),
            ]
            in_threads(_if_possible, changes, self._files.store.threads)
        finally:
            _given_up.add(self.token)

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            with suppress(StoreError):  # The next heartbeat may succeed.
                try:
                    self.check()
                except LedgerError:
                    return  # A later change raises this error.


@contextmanager
def lease(ledger: Ledger, *, wait: Wait | None = None, is_new: bool = False) -> Iterator[Lease]:
    """Hold the lease of a dataset during the block.

    Args:
        ledger: The ledger of the dataset.
        wait: Wait for another holder, with these actions. None: do not wait.
        is_new: True if this process has just found no dataset. If there is no earlier lease either,
            there is no work to finish.

    Yields:
        The lease.

    Raises:
        LedgerError: Another process holds the lease. With `wait`, this is not raised.
        StoreError: The dataset cannot be read or written.
    """
    files = LeaseFiles(ledger.store)
    has_waited = False
    while True:
        before = files.latest()
        if before is None or _is_over(files, before):
            begun = _uptime()
            mine = _acquire(files, before)
            if mine:
                break
            continue  # Another process was faster. Check whether it still holds the lease.
        if wait is None:
            raise LedgerError(_message(ledger.store.url, before))
        wait.begin()
        has_waited = True
        time.sleep(_WAIT_SECONDS)
    # The lease has a store of its own, because its files are written without a check of the lease.
    unchecked = LeaseFiles(open_store(ledger.store.url))
    clean = before.clean if before else is_new
    held = Lease(unchecked, mine, clean=clean, has_waited=has_waited, begun=begun)
    ledger.store.before_change = held.ensure
    try:
        if wait and has_waited:
            wait.end()
        yield held
    finally:
        ledger.store.before_change = no_check
        held.end()


def _acquire(files: LeaseFiles, before: Holder | None) -> Holder | None:
    """Create the lease after `before`, which is over. Return None if another process has one."""
    mine = this_process(1 + (before.number if before else 0))
    is_mine = False
    try:
        created = files.create(mine)
        # This process may have been suspended before it created the file. Then the holder of
        # `before` may have sent another heartbeat. Or later holders have created and deleted this
        # number.
        with ThreadPoolExecutor(1) as pool:
            lookup = pool.submit(files.latest)
            is_over = before is None or files.is_unchanged(before)
        latest = lookup.result()
        # The answer of the store may have been lost. Its repetition finds the file of this process.
        is_latest = latest is not None and latest.token == mine.token
        is_mine = is_over and is_latest
        if not is_mine and (created or is_latest):
            files.delete(mine)
    finally:
        if not is_mine:
            _given_up.add(mine.token)
    return mine if is_mine else None


def holder(ledger: Ledger) -> str | None:
    """Return a description of the process that holds a dataset; None if the lease is free.

    A lease of another machine counts as expired by this machine's clock, which may differ. To
    decide, use `check_free`.

    Raises:
        LedgerError: The file of the lease is damaged.
        StoreError: The lease cannot be read.
    """
    latest = LeaseFiles(ledger.store).latest()
    if latest is None or _has_ended(latest):
        return None
    # The kernel shows that a process of this machine is alive, even if its heartbeat is late.
    alive = latest.is_alive
    if alive is None:
        alive = not _looks_lapsed(latest)
    return str(latest) if alive else None


def read_token(ledger: Ledger) -> str | None:
    """Return the token of a dataset's latest lease; None if there is no lease.

    Raises:
        LedgerError: The file of the lease is damaged.
        StoreError: The lease cannot be read.
    """
    latest = LeaseFiles(ledger.store).latest()
    return latest.token if latest else None


def is_held(ledger: Ledger, token: str) -> bool:
    """Return whether a lease is the latest one and has not been released.

    Args:
        ledger: The ledger of the dataset.
        token: The token of the lease.

    Raises:
        LedgerError: The file of the lease is damaged.
        StoreError: The lease cannot be read.
    """
    latest = LeaseFiles(ledger.store).latest()
    return latest is not None and latest.token == token and not latest.ended


def was_held_here(token: str) -> bool:
    """Return whether this process had the lease with this token, which has ended."""
    return token in _given_up


def check_free(ledger: Ledger) -> None:
    """Check that no process holds a dataset.

    If the clocks of two machines differ, this waits for a heartbeat, at most `LAPSE_SECONDS`.

    Raises:
        LedgerError: A process holds the lease, or the file of the lease is damaged.
        StoreError: The lease cannot be read.
    """
    files = LeaseFiles(ledger.store)
    latest = files.latest()
    if latest and not _is_over(files, latest):
        raise LedgerError(_message(ledger.store.url, latest))


def _message(dataset: str, who: Holder) -> str:
    return f"{dataset}: another run is using it ({who}). Wait until it ends (--wait), or stop it."


def _is_over(files: LeaseFiles, latest: Holder) -> bool:
    alive = latest.is_alive
    if _has_ended(latest) or alive is False:
        return True
    if alive or not _looks_lapsed(latest):
        return False
    # The clocks of two machines differ. The lease has expired only if its file does not change for
    # this long by the clock of this machine.
    deadline = _uptime() + LAPSE_SECONDS
    while _uptime() < deadline:
        time.sleep(_POLL_SECONDS)
        if files.latest() != latest:
            return False
    return True


def _if_possible(change: Callable[[], None]) -> None:
    """Change a file of a lease. Without the change, the lease expires, or an earlier file stays."""
    with suppress(StoreError):
        change()


def _uptime() -> float:
    """Return the seconds since the machine was booted, also those in which it was suspended."""
    # `time.monotonic` does not count the time of a suspension.
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _has_ended(who: Holder) -> bool:
    return who.ended or who.token in _given_up


def _looks_lapsed(who: Holder) -> bool:
    # A heartbeat of the future is no sign of life: the clock of a dead machine may have been fast.
    return abs(time.time() - who.beat) > LAPSE_SECONDS
