"""Detects that a run is cancelled: by Ctrl-C, by SIGTERM, or in Prefect."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from types import FrameType
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.exceptions import PrefectException

_ASK_SECONDS = 2.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Shells expect this exit code of a command that Ctrl-C ended.
_EXIT_CODE = 130


class Cancellation:
    """Detects that one flow run is cancelled.

    Attributes:
        reason: How the run was cancelled. Empty until then.
    """

    def __init__(self, flow_run: UUID) -> None:
        self.reason = ""
        self._signalled = False
        self._flow_run = flow_run
        self._over = threading.Event()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle signals and poll the API until the block ends.

        The first signal requests the cancellation. The second signal ends the process at once. Only
        the main thread can handle signals, so another thread only polls the API.
        """
        # The API is polled in a separate thread, because a request to a server that is down takes
        # minutes.
        asking = threading.Thread(
            target=copy_context().run, args=(self._ask,), name="cancellation", daemon=True
        )
        asking.start()
        is_main = threading.current_thread() is threading.main_thread()
        before = {number: signal.getsignal(number) for number in _SIGNALS} if is_main else {}
        self.listen()
        try:
            yield
        finally:
            self._over.set()
            for number, handler in before.items():
                signal.signal(number, handler)

    def listen(self) -> None:
        """Install the signal handlers again. Ray replaces the handlers when it starts."""
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                signal.signal(number, self._take)

    def _take(self, number: int, _: FrameType | None) -> None:
        # A cancellation in Prefect also counts as the first signal: the worker sends SIGTERM.
        if self._signalled:
            os._exit(_EXIT_CODE)
        self._signalled = True
        self.reason = self.reason or f"by {signal.Signals(number).name}"

    def _ask(self) -> None:
        while not self._over.wait(_ASK_SECONDS):
            # An error of the API is not a cancellation, so the next poll retries.
            with (
                suppress(httpx.HTTPError, PrefectException),
                get_client(sync_client=True) as client,
            ):
                state = client.read_flow_run(self._flow_run).state
                if state and state.type in (StateType.CANCELLING, StateType.CANCELLED):
                    self.reason = self.reason or "in Prefect"
                    return
