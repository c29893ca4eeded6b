"""A request to end a run of inputs early."""

import threading
import time


class Stop:
    """A request to begin no further inputs. Running inputs may take `grace_seconds` longer.

    Any thread may make the request.
    """

    def __init__(self, grace_seconds: float = 3.0) -> None:
        self._grace_seconds = grace_seconds
        self._event = threading.Event()
        self._requested_at = 0.0

    def request(self) -> None:
        """Make the request. A second call has no effect."""
        if not self._event.is_set():
            self._requested_at = time.monotonic()
            self._event.set()

    @property
    def requested(self) -> bool:
        """True if the request was made."""
        return self._event.is_set()

    @property
    def overdue(self) -> bool:
        """True if the grace period of running inputs is over."""
        return self.requested and time.monotonic() > self._requested_at + self._grace_seconds

    def wait(self, seconds: float) -> None:
        """Sleep for `seconds`, or until the request is made."""
        self._event.wait(max(0.0, seconds))
