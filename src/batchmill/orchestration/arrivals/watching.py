"""Announce the files that arrive in a source to the Prefect server, with an event."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import InitVar, dataclass, field
from itertools import chain, repeat
from typing import Any

from prefect.events import Event, Resource
from prefect.logging import get_run_logger

from batchmill.core.storage import is_url
from batchmill.errors import BatchmillError, ServiceError
from batchmill.orchestration.arrivals.detection import Arrivals, FileVersion
from batchmill.orchestration.arrivals.watch_target import WatchTarget
from batchmill.orchestration.server.api import (
    API_ERRORS,
    client_without_retries,
    event_resource,
    shown_api,
)

ARRIVED = "batchmill.data.arrived"
_FIRST_NAMES = 20
_RETRY_SECONDS = 900.0
_SHORTEST_PAUSE_SECONDS = 0.5
# While files are incomplete, the source is listed this many times per `min_age`.
_LISTINGS_PER_MIN_AGE = 8
# Seconds to pause per second of listing. So listings take at most a fifth of the time.
_PAUSE_PER_LISTING = 4
# The keys of `_problems`.
_SERVER, _SOURCE = "server", "source"


def make_payload(target: WatchTarget, batch: Mapping[str, FileVersion]) -> dict[str, Any]:
    """Return the event's payload for a batch of new files.

    Args:
        target: The source of the files.
        batch: The files by name.

    Returns:
        The source, the pattern, the number of files, their bytes and the first names.
    """
    return {
        "source": target.source,
        "pattern": target.pattern,
        "count": len(batch),
        "bytes": sum(max(file.size, 0) for file in batch.values()),
        "first": sorted(batch)[:_FIRST_NAMES],
    }


def announce(target: WatchTarget, payload: Mapping[str, Any]) -> None:
    """Send the event once.

    `emit_event` of Prefect would lose the event without an error while the server is down.

    Args:
        target: The source of the new files, and the deployment to run.
        payload: The result of `make_payload`.

    Raises:
        ServiceError: The server did not accept the event.
    """
    labels = event_resource("source", target.source)
    if target.deployment:
        labels["batchmill.deployment"] = target.deployment
    event = Event(event=ARRIVED, resource=Resource.model_validate(labels), payload=dict(payload))
    try:
        with client_without_retries() as client:
            answer = client.request("POST", "/events", json=[event.model_dump(mode="json")])
            answer.raise_for_status()
    except API_ERRORS as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ServiceError(
            f"The Prefect server at {shown_api()} did not accept the event ({reason})."
        ) from error


def retry_pauses() -> Iterator[float]:
    """Return the seconds to wait before each retry: twice as long each time, at most 60."""
    return chain([1.0, 2.0, 4.0, 8.0, 16.0, 32.0], repeat(60.0))


def announce_with_retries(target: WatchTarget, payload: Mapping[str, Any]) -> None:
    """Send the event, and retry for 15 minutes. Call it within a flow run.

    After that, the next run of the scheduled flow announces the same files.

    Args:
        target: The source of the new files, and the deployment to run.
        payload: The result of `make_payload`.

    Raises:
        ServiceError: The server did not accept the event.
    """
    deadline = time.monotonic() + _RETRY_SECONDS
    for pause in retry_pauses():
        try:
            announce(target, payload)
        except ServiceError as error:
            if time.monotonic() + pause > deadline:
                raise
            get_run_logger().warning("%s Retrying in %g s.", error, pause)
            time.sleep(pause)
        else:
            return


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
        self._list_files()

    def run(self) -> None:
        """Watch until `stop` is called."""
        while not self._stopped.is_set():
            self._announce_due_files()
            self._wait()
            if self._stopped.is_set():
                return
            try:
                self._list_files()
            except BatchmillError as error:
                self._set_problem(_SOURCE, f"{error}\nWaiting until it can be read again.")

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

    def _list_files(self) -> None:
        started, wall = time.monotonic(), time.time()
        try:
            files = self.target.list_files()
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
