"""Watch a source, and announce the files that arrive in it, until the watcher is stopped."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import InitVar, dataclass, field
from typing import Any

from batchmill.errors import BatchmillError, ServiceError
from batchmill.orchestration.arrivals.detection import Arrivals, FileVersion
from batchmill.orchestration.arrivals.event import announce, make_payload, retry_pauses
from batchmill.orchestration.arrivals.watch_target import WatchTarget
from batchmill.storage import is_url

_SHORTEST_PAUSE_SECONDS = 0.5
# While files are incomplete, the source is listed this many times per `min_age`.
_LISTINGS_PER_MIN_AGE = 8
# Seconds to pause per second of listing. So listings take at most a fifth of the time.
_PAUSE_PER_LISTING = 4
# The keys of `_problems`.
_SERVER, _SOURCE = "server", "source"


@dataclass
class SourceWatcher:
    """Lists a source repeatedly, and announces the files that arrive in it.

    Args:
        target: The source, and the deployment to run.
        every_seconds: The pause between two listings.
        known: Files that need no announcement.
        report: Called with the payload of each announcement.
        warn: Called once with each problem, and when the source can be read again.
    """

    target: WatchTarget
    every_seconds: float
    known: InitVar[Mapping[str, FileVersion]]
    report: Callable[[dict[str, Any]], None]
    warn: Callable[[str], None]
    _problems: dict[str, str] = field(default_factory=dict)
    _listing_took: float = 0.0
    _pauses: Iterator[float] = field(default_factory=retry_pauses)
    _retry_at: float = 0.0
    _stopped: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self, known: Mapping[str, FileVersion]) -> None:
        is_local = not is_url(self.target.source)
        self._arrivals = Arrivals(self.target.min_age, local=is_local, known=known)

    def start(self) -> None:
        """List the source for the first time.

        Raises:
            BatchmillError: The source cannot be read.
        """
        self._list_files(is_first=True)

    def run(self) -> None:
        """Watch until `stop` is called."""
        while not self._stopped.is_set():
            self._announce_due_files()
            self._wait()
            if not self._stopped.is_set():
                self._list_files()

    def stop(self) -> None:
        """Make `run` return after its current action. A signal handler may call this."""
        self._stopped.set()

    def _announce_due_files(self) -> None:
        now = time.monotonic()
        batch = self._arrivals.due(now)
        if not batch or now < self._retry_at:
            return
        payload = make_payload(self.target, batch)
        try:
            announce(self.target, payload)
        except ServiceError as error:
            self._retry_at = time.monotonic() + next(self._pauses)
            self._set_problem(_SERVER, f"{error} Retrying until the server accepts it.")
            return
        self._arrivals.mark_announced(batch)
        self._pauses, self._retry_at = retry_pauses(), 0.0
        self._problems.pop(_SERVER, None)
        self.report(payload)

    def _list_files(self, *, is_first: bool = False) -> None:
        started, wall = time.monotonic(), time.time()
        try:
            files = self.target.list_files()
        except BatchmillError as error:
            if is_first:
                raise
            self._set_problem(_SOURCE, f"{error}\nWaiting until it can be read again.")
            return
        finally:
            self._listing_took = time.monotonic() - started
        if self._problems.pop(_SOURCE, None):
            self.warn(f"{self.target.source}: can be read again.")
        self._arrivals.update(files, started, wall)

    def _wait(self) -> None:
        """Wait until the source should be listed again."""
        pause = self.every_seconds
        if self._arrivals.waiting:
            pause = min(pause, self.target.min_age / _LISTINGS_PER_MIN_AGE)
        shortest = max(_SHORTEST_PAUSE_SECONDS, _PAUSE_PER_LISTING * self._listing_took)
        self._stopped.wait(max(pause, shortest))

    def _set_problem(self, about: str, text: str) -> None:
        """Record a problem, and warn about it unless the previous warning was the same."""
        if self._problems.get(about) != text:
            self.warn(text)
        self._problems[about] = text
