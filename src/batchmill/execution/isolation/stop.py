"""A request to end a run of inputs early."""

import threading
import time


class Stop:
    """Once requested, no input begins; those at hand may take `grace_seconds` more.

    Any thread may request it.
    """

    def __init__(self, grace_seconds: float = 3.0) -> None:
        self._grace_seconds = grace_seconds
        self._event = threading.Event()
        self._requested_at = 0.0

    def request(self) -> None:
        """Ask for it; a second time changes nothing."""
        if not self._event.is_set():
            self._requested_at = time.monotonic()
            self._event.set()

    @property
    def requested(self) -> bool:
        """Whether it was asked for."""
        return self._event.is_set()

    @property
    def overdue(self) -> bool:
        """Whether what is still at work has had its time."""
        return self.requested and time.monotonic() > self._requested_at + self._grace_seconds

    def wait(self, seconds: float) -> None:
        """Sleep, but not beyond the request."""
        self._event.wait(max(0.0, seconds))
