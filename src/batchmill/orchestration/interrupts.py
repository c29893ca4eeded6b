"""Handles Ctrl-C (SIGINT) and SIGTERM during a run, from its checks to the end of the command."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Shells expect this exit code of a command that Ctrl-C ended.
_EXIT_CODE = 130
# The longest time from the second signal to the end of the process.
_END_SECONDS = 10.0
# A terminal hides its cursor while it shows a progress bar.
_SHOW_CURSOR = "\x1b[?25h"
_STDERR = 2


def is_interactive() -> bool:
    """Return whether this is the process of a notebook or of an interactive Python."""
    # It exists only in interactive mode, according to Python's documentation. IPython sets it.
    return hasattr(sys, "ps1")


class Interrupts:
    """The signals that this process has received, and what they do.

    | signal | before `defer` | after `defer` |
    |---|---|---|
    | first | raises KeyboardInterrupt | sets `received` |
    | second | sets a time limit for the end of the process | calls `at_second`, ends the process |
    | others | ignored | ignored |

    The process of a notebook or of an interactive Python has other work of the user. No signal ends
    it: the second one only calls `at_second`.

    Attributes:
        received: The name of the first signal after `defer`. Empty until then.
    """

    def __init__(self) -> None:
        self.received = ""
        self._count = 0
        self._is_deferred = False
        self._end: Callable[[], None] | None = None
        self._limit: threading.Timer | None = None
        self._is_interactive = is_interactive()

    def install(self) -> None:
        """Install the signal handlers. Ray and Prefect replace them. Needs the main thread."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self._handle)

    def defer(self) -> None:
        """Raise no exception from now on. The caller reads `received`."""
        self._is_deferred = True

    @contextmanager
    def at_second(self, end: Callable[[], None]) -> Iterator[None]:
        """Call `end` at the second signal during the block, and then end the process.

        Args:
            end: Called in a thread with a copy of the current context, because the main thread may
                be at any line. The process does not wait longer than 10 s for it. In an interactive
                process, the block continues afterwards.
        """
        before, context = self._end, copy_context()
        self._end = lambda: context.run(end)
        try:
            yield
        finally:
            self._end = before

    def lift_limit(self) -> None:
        """Let the process continue: what the signals interrupted has ended."""
        if self._limit:
            self._limit.cancel()

    def _handle(self, number: int, _: FrameType | None) -> None:
        self._count += 1
        if self._count == 1:
            if not self._is_deferred:
                raise KeyboardInterrupt
            self.received = signal.Signals(number).name
        elif self._count == 2:
            self._end_soon()

    def _end_soon(self) -> None:
        """End the process, or limit the time of the main thread if it is already ending."""
        if self._end:
            # The main thread waits here. Otherwise it would end the same run in another way.
            self._end_now()
        if self._is_interactive:
            return
        self._limit = threading.Timer(_END_SECONDS, self._end_now)
        self._limit.daemon = True
        self._limit.start()

    def _end_now(self) -> None:
        if self._end:
            ending = threading.Thread(target=self._end, name="second-signal", daemon=True)
            ending.start()
            ending.join(_END_SECONDS)
        if self._is_interactive:
            return
        text = "\nCancelled. Committed results are kept. Run the same command again to resume.\n"
        if sys.stderr.isatty():
            text = _SHOW_CURSOR + text
        os.write(_STDERR, text.encode())
        os._exit(_EXIT_CODE)


_current: Interrupts | None = None


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Yield the interrupts of the surrounding block, or new ones that are handled in this block."""
    global _current  # A process has only one handler of a signal.
    if _current or threading.current_thread() is not threading.main_thread():
        yield _current or Interrupts()
        return
    with restoring_handlers():
        _current = new = Interrupts()
        try:
            new.install()
            yield new
        finally:
            _current = None
            new.lift_limit()


@contextmanager
def restoring_handlers() -> Iterator[None]:
    """Install the present handlers of both signals again after the block."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# Set if a thread does not return from a library. The end of Python would wait for it, or crash.
is_blocked = threading.Event()


def ignore_ctrl_c() -> None:
    """Ignore Ctrl-C while Python ends this process. It would change the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
