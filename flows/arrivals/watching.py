"""Watch a source, and announce what has arrived, until somebody ends it."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from batchmill.flows.arrivals.event import announce, pauses, payload_of
from batchmill.flows.arrivals.folder_watcher import FolderWatcher
from batchmill.flows.arrivals.watch_target import WatchTarget

from batchmill.arrivals import Arrivals, Mark
from batchmill.errors import BatchmillError, ServiceError
from batchmill.storage import is_url

# Events may be lost: a full look every so often all the same.
_FULL_LOOK_SECONDS = 300.0
_SOONEST_LOOK_SECONDS = 0.5
# Of the time that a file needs to settle, so much may pass until it is looked at again.
_LOOKS_WHILE_SETTLING = 8
# Looks take no more than a fifth of the time, however many files there are.
_PAUSE_PER_LOOK = 4


class Watching:
    """Looks at a source, and announces what has arrived in it.

    `tell` is called with the payload of each announcement, `complain` with what is wrong, once.
    """

    def __init__(
        self,
        watched: WatchTarget,
        *,
        every_seconds: float,
        bell: FolderWatcher | None,
        known: Mapping[str, Mark],
        tell: Callable[[dict[str, Any]], None],
        complain: Callable[[str], None],
    ) -> None:
        self._watched = watched
        self._every = every_seconds
        self._bell = bell
        self._tell = tell
        self._complain = complain
        self._complaints: dict[str, str] = {}
        self._arrivals = Arrivals(
            watched.settle_seconds, local=not is_url(watched.source), known=known
        )
        self._looked_at = self._look_took = 0.0
        self._pauses = pauses()
        self._not_before = 0.0
        self._ended = threading.Event()

    def begin(self) -> None:
        """Take a first look. Raises ManifestError where the source cannot be read."""
        self._look(patient=False)

    def run(self) -> None:
        """Watch until it is told to `end`."""
        while not self._ended.is_set():
            self._announce_what_is_due()
            self._wait()
            if not self._ended.is_set():
                self._look()

    def end(self) -> None:
        """Have `run` return when it has done what it is at; a signal's handler may say so."""
        self._ended.set()
        if self._bell:
            self._bell.ring()

    def _announce_what_is_due(self) -> None:
        now = time.monotonic()
        batch = self._arrivals.due(now)
        if not batch or now < self._not_before:
            return
        payload = payload_of(self._watched, batch)
        try:
            announce(self._watched, payload)
        except ServiceError as error:
            self._not_before = time.monotonic() + next(self._pauses)
            self._say("server", f"{error} It is tried again until it has.")
            return
        self._arrivals.announced(batch)
        self._pauses, self._not_before = pauses(), 0.0
        self._say("server", "")
        self._tell(payload)

    def _look(self, *, patient: bool = True) -> None:
        begun, wall = time.monotonic(), time.time()
        try:
            seen = self._watched.look()
        except BatchmillError as error:
            if not patient:
                raise
            if self._bell:
                # What was renamed or mounted anew is another folder, even if it looks the same.
                self._bell.close()
            self._say("source", f"{error}\nIt is waited for.")
            return
        finally:
            self._looked_at = time.monotonic()
            self._look_took = self._looked_at - begun
        if "source" in self._complaints:
            self._say("source", "")
            self._complain(f"{self._watched.source}: can be read again.")
        self._arrivals.see(seen, begun, wall)

    def _wait(self) -> None:
        """Wait until it is worth while to look again."""
        pause = self._every
        if self._arrivals.waiting:
            pause = min(pause, self._watched.settle_seconds / _LOOKS_WHILE_SETTLING)
        pause = max(pause, _SOONEST_LOOK_SECONDS, _PAUSE_PER_LOOK * self._look_took)
        if self._bell is None or self._arrivals.waiting or self._complaints:
            self._ended.wait(pause)
            return
        while not self._bell.wait(self._every) and not self._bell.silent:
            if time.monotonic() - self._looked_at > _FULL_LOOK_SECONDS:
                return
        if self._bell.silent:
            self._complain(
                f"{self._watched.source}: no file-system events ({self._bell.silent}). "
                f"It is listed every {self._every:g} seconds."
            )
            self._bell.close()
            self._bell = None
            return
        # What has come is seldom alone.
        self._ended.wait(max(_SOONEST_LOOK_SECONDS, _PAUSE_PER_LOOK * self._look_took))

    def _say(self, about: str, what: str) -> None:
        """Complain about something, but not twice in the same words; or take it back."""
        if what and self._complaints.get(about) != what:
            self._complain(what)
        if what:
            self._complaints[about] = what
        else:
            self._complaints.pop(about, None)
