"""Commit the outcomes of a shard in parts, while the shard runs."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.parts import Origin
from batchmill.core.outcome import Outcome

# A killed node loses at most the work of this period, later a share of the time, with a limit. A
# long run would otherwise write thousands of parts.
COMMIT_SECONDS = 2.0
_COMMIT_SHARE, _MAX_COMMIT_SECONDS = 0.01, 30.0
# These limits bound the memory that uncommitted outcomes use.
COMMIT_INPUTS, COMMIT_BYTES = 20_000, 32 * 2**20


@dataclass
class Committer:
    """A context manager that commits outcomes in parts, in a separate thread.

    A part is committed every `COMMIT_SECONDS`, later after one more percent of the time, at least
    every 30 seconds, and sooner if there are many outcomes. Outcomes that were added before the end
    of the `with` block are committed at its end.

    Attributes:
        ledger: The ledger to write to.
        prefix: The first part of the names of the parts. No other attempt uses it.
        records_of: Called with the outcomes before each commit. It returns the records to commit.
            If it raises an error, nothing is committed any more.
        on_tick: Called in the thread at least every `COMMIT_SECONDS`.
    """

    ledger: Ledger
    prefix: str
    records_of: Callable[[Sequence[Outcome]], Sequence[tuple[Outcome, Origin]]]
    on_tick: Callable[[], None]
    _waiting: list[Outcome] = field(default_factory=list)
    _bytes: int = 0
    _parts: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _committing: threading.Lock = field(default_factory=threading.Lock)
    _due: threading.Event = field(default_factory=threading.Event)
    _ended: bool = False
    _error: Exception | None = None

    def __enter__(self) -> "Committer":
        self._thread = threading.Thread(target=self._serve, name="commit", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended = True
        self._due.set()
        self._thread.join()
        if self._error and not any(exception):
            raise self._error

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Add outcomes to commit.

        Args:
            outcomes: The outcomes, in the order in which they ended.

        Raises:
            StoreError: An earlier commit failed. Other errors of that commit are raised as well.
        """
        if self._error:
            raise self._error
        with self._lock:
            self._waiting += outcomes
            self._bytes += sum(len(outcome.rows) for outcome in outcomes)
        if len(self._waiting) >= COMMIT_INPUTS or self._bytes >= COMMIT_BYTES:
            self._due.set()

    def _serve(self) -> None:
        try:
            begun = committed = time.monotonic()
            while not self._ended:
                is_urgent = self._due.wait(COMMIT_SECONDS)
                self._due.clear()
                now = time.monotonic()
                pause = min(_COMMIT_SHARE * (now - begun), _MAX_COMMIT_SECONDS)
                if is_urgent or now - committed >= pause:
                    committed = now
                    self.flush()
                if not self._ended:
                    self.on_tick()
            self.flush()
        except Exception as error:  # noqa: BLE001  # `add` raises it in the shard's thread.
            self._error = error

    def flush(self) -> None:
        """Commit the outcomes that were added so far. Raises StoreError."""
        with self._committing:
            with self._lock:
                outcomes, self._waiting, self._bytes = self._waiting, [], 0
            if outcomes:
                self.ledger.commit(f"{self.prefix}-{self._parts:05d}", self.records_of(outcomes))
                self._parts += 1
