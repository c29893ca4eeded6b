"""Commits the outcomes of a shard in parts, while it goes on."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from batchmill.ledger.ledger import Ledger, Origin
from batchmill.outcome import Outcome

# A killed node costs what is not committed: so many seconds of work. The others bound memory.
COMMIT_SECONDS = 2.0
COMMIT_INPUTS, COMMIT_BYTES = 20_000, 32 * 2**20


@dataclass
class Committer:
    """Commits outcomes in parts, by time and by number, in a thread of its own.

    `look` is called as often as it looks at the time.
    """

    ledger: Ledger
    prefix: str
    origins: Mapping[str, Origin]
    look: Callable[[], None]
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
        """Take outcomes to commit. Raises what an earlier commit has raised."""
        if self._error:
            raise self._error
        with self._lock:
            self._waiting += outcomes
            self._bytes += sum(len(outcome.rows) for outcome in outcomes)
        if len(self._waiting) >= COMMIT_INPUTS or self._bytes >= COMMIT_BYTES:
            self._due.set()

    def flush(self) -> None:
        """Commit what has been given so far, now. Raises what a commit raises."""
        self._commit()

    def _serve(self) -> None:
        try:
            while not self._ended:
                self._due.wait(COMMIT_SECONDS)
                self._due.clear()
                self._commit()
                self.look()
            self._commit()
        except Exception as error:  # noqa: BLE001  # Raised in the shard's own thread.
            self._error = error

    def _commit(self) -> None:
        with self._committing:
            with self._lock:
                outcomes, self._waiting, self._bytes = self._waiting, [], 0
            if outcomes:
                records = [(outcome, self.origins[outcome.input]) for outcome in outcomes]
                self.ledger.commit(f"{self.prefix}-{self._parts:05d}", records)
                self._parts += 1
