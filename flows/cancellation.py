"""What asks a run to end: Ctrl-C, SIGTERM, or its state in the Prefect API."""

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
# What a shell expects of a command that Ctrl-C has ended.
_EXIT_CODE = 130


class Cancellation:
    """Knows whether a flow run is to end; `reason` says why, and is empty until then."""

    def __init__(self, flow_run: UUID) -> None:
        self.reason = ""
        self._signalled = False
        self._flow_run = flow_run
        self._over = threading.Event()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take signals and ask the API within the block.

        The first signal is a request, the second ends the process. They come to the main thread; in
        another one, only the API is asked.
        """
        # In a thread of its own: a server that is away keeps who asks it waiting for minutes.
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
        """Take signals once more: others, as Ray does, may have taken them for themselves."""
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                signal.signal(number, self._take)

    def _take(self, number: int, _: FrameType | None) -> None:
        # Who cancels a deployment's run in Prefect has its worker send a signal, too: the first.
        if self._signalled:
            os._exit(_EXIT_CODE)
        self._signalled = True
        self.reason = self.reason or f"by {signal.Signals(number).name}"

    def _ask(self) -> None:
        while not self._over.wait(_ASK_SECONDS):
            # A server that does not answer does not cancel.
            with (
                suppress(httpx.HTTPError, PrefectException),
                get_client(sync_client=True) as client,
            ):
                state = client.read_flow_run(self._flow_run).state
                if state and state.type in (StateType.CANCELLING, StateType.CANCELLED):
                    self.reason = self.reason or "in Prefect"
                    return
