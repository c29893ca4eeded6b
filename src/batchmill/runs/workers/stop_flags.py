"""How a shard's process stops its workers: they begin no further input.

Flags in shared memory must be created before the workers are forked.
"""

import mmap
import threading
import time

_POLL_SECONDS = 0.001


class SharedFlag:
    """A flag that a shard's process and all its workers see. It is set once, and has no lock."""

    def __init__(self) -> None:
        self._flag = mmap.mmap(-1, 1)

    def set(self) -> None:
        """Set the flag for all processes."""
        self._flag[0] = 1

    def is_set(self) -> bool:
        """Return whether the flag is set."""
        return self._flag[0] == 1

    def wait(self) -> None:
        """Wait until the flag is set."""
        while not self.is_set():
            time.sleep(_POLL_SECONDS)


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
