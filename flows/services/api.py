"""Which Prefect API a run talks to, and what has to be true of it when the run ends."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from uuid import UUID

import batchmill.flows.services.forks  # noqa: F401
import httpx
from batchmill.flows.services.embedded_server import embedded_server
from batchmill.tasks.logs import send_logs
from prefect import Task
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    PREFECT_HOME,
    temporary_settings,
)
from prefect.states import Crashed

from batchmill.errors import ServiceError
from batchmill.storage.urls import hide_secrets

_RECORD_SECONDS = 20.0
_POLL_SECONDS = 0.2
_PAGE = 200
_MOST_TASK_RUNS = 5000


@contextmanager
def shared_api() -> Iterator[None]:
    """Give the block, and every Ray worker it starts, one Prefect API.

    It is the one that is configured, or that of the flow run around, or a temporary server.
    """
    if PREFECT_API_URL.value():
        _check_configured()
        yield
        return
    around = FlowRunContext.get()
    if around:
        with temporary_settings({PREFECT_API_URL: str(around.client.api_url)}):
            yield
        return
    with (
        embedded_server(PREFECT_HOME.value()) as url,
        # Nobody listens for the heartbeats of a flow whose server ends with it; and at its end,
        # Prefect would wait up to a second for the thread that sends them.
        temporary_settings(
            {PREFECT_API_URL: url}, set_defaults={PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}
        ),
    ):
        try:
            yield
        finally:
            # What is not sent now would be sent when the server is gone.
            send_logs()


def lost_server_message(error: Exception) -> str:
    """Say that the Prefect server went away in the middle of a run, and what that costs."""
    return (
        f"The Prefect server at {_shown_api()} stopped responding. Committed "
        f"results are kept. Run the same command again to complete the dataset. ({error})"
    )


def _shown_api() -> str:
    return hide_secrets(str(PREFECT_API_URL.value()))


def _check_configured() -> None:
    """Raise ServiceError if the configured server does not answer, or does not let us in."""
    with get_client(sync_client=True) as client:
        trouble = client.api_healthcheck()
        if trouble is None:
            try:
                client.read_flows(limit=1)  # Whether it is well, a server tells everybody.
            except httpx.HTTPError as error:
                trouble = error
    if trouble is None:
        return
    what, remedy = trouble_with_server(trouble)
    raise ServiceError(
        f"The Prefect server at PREFECT_API_URL={_shown_api()} {what}. "
        f"{remedy}, or unset PREFECT_API_URL for a temporary one."
    )


def trouble_with_server(error: Exception) -> tuple[str, str]:
    """Return what an error of Prefect's client says of the server, and what to do about it."""
    if not isinstance(error, httpx.HTTPStatusError):
        reason = str(error).partition("\n")[0] or type(error).__name__
        return f"does not respond ({reason})", "Start it or correct its address"
    status = error.response.status_code
    answer = f"({status} {error.response.reason_phrase})"
    if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        remedy = "Set PREFECT_API_AUTH_STRING=USER:PASSWORD, or for Prefect Cloud PREFECT_API_KEY"
        return f"rejected the credentials {answer}", remedy
    if httpx.codes.is_client_error(status):
        return f"has no API there {answer}", "Give its API's address, which ends in /api"
    return f"responded with an error {answer}", "See its log, or try again later"


def wait_until_recorded(flow_run: UUID, task_runs: int, seconds: float = _RECORD_SECONDS) -> None:
    """Wait until the API knows how `task_runs` task runs ended; their events arrive later.

    A server that stops earlier loses them. Gives up after a while: history is no reason to fail.
    """
    deadline = time.monotonic() + seconds
    with get_client(sync_client=True) as client:
        while time.monotonic() < deadline:
            states = [run.state for run in _task_runs_of(client, flow_run)]
            if sum(1 for state in states if state and state.is_final()) >= task_runs:
                return
            time.sleep(_POLL_SECONDS)


def end_dead_run(flow_run: UUID, reason: str) -> None:
    """See to it that the API shows a flow run as ended whose process is no more, if it does not.

    Its task runs, too. A process that is killed tells nothing; a worker that has started it may
    have said that the flow run crashed, and nobody says it of its task runs.
    """
    with (
        temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
        suppress(httpx.HTTPError, PrefectException),  # It may be known to another server.
        get_client(sync_client=True) as client,
    ):
        state = client.read_flow_run(flow_run).state
        if state and (state.is_completed() or state.is_failed()):
            return  # It has said so itself, at its end.
        if state is None or not state.is_final():
            client.set_flow_run_state(flow_run, Crashed(message=reason), force=True)
        # All of them first: pages may be others when states are.
        for run in list(_task_runs_of(client, flow_run)):
            if run.state is None or not run.state.is_final():
                client.set_task_run_state(run.id, Crashed(message=reason), force=True)


def _task_runs_of(client: SyncPrefectClient, flow_run: UUID) -> Iterator[TaskRun]:
    """Yield a flow run's task runs, as many as a run has at most."""
    this_run = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run]))
    for offset in range(0, _MOST_TASK_RUNS, _PAGE):
        page = client.read_task_runs(flow_run_filter=this_run, limit=_PAGE, offset=offset)
        yield from page
        if len(page) < _PAGE:
            return


class TaskRunEnd(NamedTuple):
    """How a task run ended, as its flow run knows it."""

    id: UUID
    name: str
    state: State[Any]


def record_ends(flow_run: UUID, task: Task[..., Any], ends: Iterable[TaskRunEnd]) -> None:
    """See to it that the API knows how task runs ended, whatever became of their own events.

    A process that is killed does not send them, and what it had executed before may be lost, too.
    """
    with get_client(sync_client=True) as client:
        known = {run.id: run.state for run in _task_runs_of(client, flow_run)}
        for end in ends:
            try:
                # What was not known may be by now; what is known twice is refused.
                recorded = known[end.id] if end.id in known else client.read_task_run(end.id).state
            except ObjectNotFound:
                client.create_task_run(
                    task,
                    flow_run_id=flow_run,
                    dynamic_key=str(end.id),
                    id=end.id,
                    name=end.name,
                    state=end.state,
                )
                continue
            # What was killed because the run was cancelled calls itself crashed.
            is_misnamed = recorded and recorded.is_crashed() and end.state.is_cancelled()
            if recorded is None or not recorded.is_final() or is_misnamed:
                client.set_task_run_state(end.id, end.state, force=True)
