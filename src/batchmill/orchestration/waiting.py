"""Shows that a flow run waits for its dataset. Only one of several equal runs waits.

Each announcement of new data starts a run. During a long run, hundreds would wait, each in a
process of its own. One is enough, because it reads the manifest after the wait.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.logging import get_run_logger
from prefect.states import Running

from batchmill.core.ledger.lease import Wait
from batchmill.errors import CancelledError
from batchmill.orchestration.server.api import API_ERRORS, client_without_retries

# The name of the state of a flow run that waits. Its type is RUNNING.
_WAITING = "Waiting"
# A waiting run renews its state this often. One that did not for three times as long has died.
_RENEW_SECONDS = 60.0


class SupersededError(Exception):
    """An equal run already waits for the dataset, and will do the same work."""


class WaitingRun(Wait):
    """The wait of the current flow run for its dataset.

    Args:
        cancelled: Returns how the flow run was cancelled, and "" until then.
    """

    def __init__(self, cancelled: Callable[[], str]) -> None:
        self._cancelled = cancelled
        self._renewed: float | None = None

    def begin(self) -> None:
        """Show that the flow run waits, and renew this regularly.

        Raises:
            CancelledError: The flow run was cancelled.
            SupersededError: The first call found an equal run of the same deployment that waits.
        """
        if reason := self._cancelled():
            raise CancelledError(f"Cancelled {reason}, while it waited for another run.")
        now = time.monotonic()
        if self._renewed is not None and now - self._renewed < _RENEW_SECONDS:
            return
        is_first, self._renewed = self._renewed is None, now
        run = _current()
        # Errors of the API end the block, because the display is not essential.
        with suppress(*API_ERRORS), client_without_retries() as client:
            if is_first and _waits_already(client, run):
                raise SupersededError(
                    "Another run of this deployment with the same parameters already waits for the "
                    "dataset. It will process the same inputs."
                )
            # Without `force`, because it would undo a cancellation in Prefect.
            client.set_flow_run_state(run.id, Running(name=_WAITING))
        if is_first:
            get_run_logger().info("Waiting until another run over the dataset has ended.")

    def end(self) -> None:
        """Show that the flow run no longer waits.

        The run reads its manifest afterwards. A run that starts later waits on its own, because it
        may be about files that the manifest does not have yet. So an error here is not ignored.

        Raises:
            httpx.HTTPError: The API does not respond.
        """
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(_current().id, Running())


def waiting_runs(client: SyncPrefectClient, deployment: UUID) -> list[FlowRun]:
    """Return the runs of a deployment that wait for their dataset in a living process."""
    wanted = {"deployment_id": {"any_": [deployment]}, "state": {"name": {"any_": [_WAITING]}}}
    runs = client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(wanted))
    oldest = datetime.now(UTC) - timedelta(seconds=3 * _RENEW_SECONDS)
    return [run for run in runs if run.state and run.state.timestamp > oldest]


def _waits_already(client: SyncPrefectClient, run: FlowRun) -> bool:
    if run.deployment_id is None:
        return False
    others = waiting_runs(client, run.deployment_id)
    return any(other.parameters == run.parameters for other in others if other.id != run.id)


def _current() -> FlowRun:
    context: Any = FlowRunContext.get()
    run: FlowRun = context.flow_run
    return run
