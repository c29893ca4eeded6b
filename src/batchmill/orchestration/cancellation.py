"""Detects that a run is cancelled: by Ctrl-C, by SIGTERM, or in Prefect."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from uuid import UUID

from prefect.client.schemas.objects import StateType
from prefect.states import Cancelled

from batchmill.orchestration.interrupts import Interrupts, interrupts
from batchmill.orchestration.server.api import API_ERRORS, client_without_retries, end_flow_run

_ASK_SECONDS = 2.0


class Cancellation:
    """Detects that one flow run is cancelled.

    Attributes:
        lost_contact: True if Prefect's server did not respond to a poll.
        clean_up: Called in a thread at the second signal, before the flow run is marked as
            Cancelled. It should take a few seconds at most.
    """

    def __init__(self, flow_run: UUID) -> None:
        self.lost_contact = False
        self._flow_run = flow_run
        self._in_prefect = False
        self._over = threading.Event()
        self._interrupts = Interrupts()
        self.clean_up: Callable[[], None] = lambda: None

    def is_cancelled(self) -> bool:
        """Return whether the run was cancelled."""
        return bool(self.reason)

    @property
    def reason(self) -> str:
        """How the run was cancelled. Empty until then."""
        received = self._interrupts.received
        return f"by {received}" if received else "in Prefect" * self._in_prefect

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle signals and poll the API until the block ends.

        The first signal requests the cancellation. The second signal ends the process in seconds.
        Only the main thread can handle signals, so another thread only polls the API.
        """
        # The API is polled in a separate thread, because a request to a server that is down may
        # take minutes.
        asking = threading.Thread(
            target=copy_context().run, args=(self._ask,), name="cancellation", daemon=True
        )
        asking.start()
        try:
            with interrupts() as self._interrupts, self._interrupts.at_second(self._end_now):
                self._interrupts.defer()
                self.listen()
                yield
        finally:
            self._over.set()

    def listen(self) -> None:
        """Install the signal handlers again. Ray replaces the handlers when it starts."""
        self._interrupts.install()

    def _end_now(self) -> None:
        """End what the second signal interrupts. The process ends afterwards."""
        try:
            self.clean_up()
        finally:
            reason = "Cancelled by a second signal. Running inputs were killed and are pending."
            end_flow_run(self._flow_run, Cancelled(message=reason))

    def _ask(self) -> None:
        while not self._over.wait(_ASK_SECONDS):
            try:
                with client_without_retries() as client:
                    state = client.read_flow_run(self._flow_run).state
            except API_ERRORS:
                # An error of the API is not a cancellation, so the next poll retries.
                self.lost_contact = True
                continue
            if state and state.type in (StateType.CANCELLING, StateType.CANCELLED):
                self._in_prefect = True
                return
