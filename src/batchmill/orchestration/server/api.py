"""Choose the Prefect API of a run, name datasets in it, and complete its records at the end."""

import logging
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal, NamedTuple
from uuid import UUID

import httpx
from prefect import Task
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import State, StateType, TaskRun
from prefect.context import FlowRunContext, SettingsContext, get_settings_context
from prefect.events.worker import EventsWorker
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.logging.handlers import APILogWorker
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    PREFECT_CLIENT_RETRY_EXTRA_CODES,
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    PREFECT_HOME,
    Settings,
    temporary_settings,
)
from prefect.states import Completed

from batchmill.core.digests import readable_id
from batchmill.core.urls import hide_secrets
from batchmill.errors import ServiceError
from batchmill.orchestration.server.embedded_server import embedded_server
from batchmill.tasks.shard import send

logger = logging.getLogger(__name__)

# The errors of Prefect's client.
API_ERRORS = (httpx.HTTPError, PrefectException)

# A flow run in one of these states has reported its end, or has no process.
_NOT_CHANGED = (StateType.COMPLETED, StateType.FAILED, StateType.SCHEDULED, StateType.PAUSED)
_POLL_SECONDS = 0.2
_PAGE = 200
_MOST_TASK_RUNS = 5000
# The last settings without retries, with the settings that they were made from. To make them,
# Prefect reads its settings again from all sources, which takes 50 ms.
_last: tuple[Settings, Settings] | None = None


@contextmanager
def shared_api() -> Iterator[None]:
    """Select one Prefect API for the block and for every Ray worker that it starts.

    The API is the configured one, else the API of the enclosing flow run, else a temporary server.

    Raises:
        ServiceError: The configured server cannot be used, or the temporary one did not start.
    """
    if PREFECT_API_URL.value():
        _check_configured()
        # A proxy or a busy server also answers with these codes, and the next request succeeds.
        with temporary_settings(set_defaults={PREFECT_CLIENT_RETRY_EXTRA_CODES: {500, 504}}):
            yield
        return
    around = FlowRunContext.get()
    if around:
        with temporary_settings({PREFECT_API_URL: str(around.client.api_url)}):
            yield
        return
    with (
        embedded_server(PREFECT_HOME.value()) as server,
        # The temporary server ends with this process, so heartbeats have no use. Prefect would wait
        # up to a second for the thread that sends them.
        temporary_settings(
            {PREFECT_API_URL: server.url, PREFECT_API_AUTH_STRING: server.auth},
            set_defaults={PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None},
        ),
    ):
        try:
            yield
        finally:
            # They must arrive before the server ends. It records the events at its end.
            send(EventsWorker)
            send(APILogWorker)


@contextmanager
def without_retries() -> Iterator[None]:
    """Let Prefect's client send each request of the block only once.

    Its retries would delay a run, or the end of a run, for minutes.
    """
    global _last
    context = get_settings_context()
    if _last is None or _last[0] is not context.settings:
        changed = context.settings.copy_with_update({PREFECT_CLIENT_MAX_RETRIES: 0})
        _last = context.settings, changed
    with SettingsContext(profile=context.profile, settings=_last[1]):
        yield


@contextmanager
def client_without_retries() -> Iterator[SyncPrefectClient]:
    """Yield a client of Prefect's API that sends each request only once."""
    with without_retries(), get_client(sync_client=True) as client:
        yield client


def shown_api() -> str:
    """Return the URL of the Prefect API without its password, for messages."""
    return hide_secrets(str(PREFECT_API_URL.value()))


def resource_id(kind: Literal["dataset", "source"], place: str) -> str:
    """Return the id of a dataset or a source in Prefect's events.

    A trigger can match all datasets with `batchmill.dataset.*`, and all sources with
    `batchmill.source.*`.
    """
    return f"batchmill.{kind}.{readable_id(kind, os.path.basename(place.rstrip('/')), place)}"


def event_resource(kind: Literal["dataset", "source"], place: str) -> dict[str, str]:
    """Return the labels of a dataset or a source in Prefect's events: its id and its name."""
    return {"prefect.resource.id": resource_id(kind, place), "prefect.resource.name": place}


def _check_configured() -> None:
    """Raise ServiceError if the configured server does not respond or rejects the credentials."""
    try:
        with get_client(sync_client=True) as client:
            client.read_flows(limit=1)  # Prefect's health check works without credentials.
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        what, remedy = trouble_with_server(error)
        raise ServiceError(
            f"The Prefect server at PREFECT_API_URL={shown_api()} {what}. "
            f"{remedy}, or unset PREFECT_API_URL to use a temporary server."
        ) from error


def trouble_with_server(error: Exception) -> tuple[str, str]:
    """Return two parts of a message for an error of Prefect's client: the problem and the fix."""
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


def wait_until_recorded(flow_run: UUID, task_runs: int, seconds: float) -> None:
    """Wait until the API has recorded the ends of a flow run's task runs.

    The events about the ends arrive with a delay, and a server that stops earlier loses them. After
    `seconds`, the wait ends without an error, because the history in Prefect is not essential.

    Args:
        flow_run: The id of the flow run.
        task_runs: The number of ended task runs to wait for.
        seconds: The longest time to wait.
    """
    deadline = time.monotonic() + seconds
    with _recording() as client:
        while time.monotonic() < deadline:
            states = [run.state for run in _task_runs_of(client, flow_run)]
            if sum(1 for state in states if state and state.is_final()) >= task_runs:
                return
            time.sleep(_POLL_SECONDS)


@contextmanager
def _recording(*, patient: bool = False) -> Iterator[SyncPrefectClient]:
    """Yield a client. An error of the server ends the block, and is logged in one line."""
    try:
        with get_client(sync_client=True) if patient else client_without_retries() as client:
            yield client
    except API_ERRORS as error:
        logger.warning("Prefect's history of this run is incomplete: %s", error)


def end_flow_run(flow_run: UUID, end: State[Any]) -> None:
    """Set the final state of a flow run whose process cannot do it, and of its task runs.

    A killed process cannot report its end. Its Prefect worker may have marked the flow run as
    crashed, but not the task runs. A flow run that has ended as Completed or Failed is not changed.
    A flow run that is scheduled, for example for a retry, has no process and is not changed either.
    The task runs get the final state of the flow run.

    Args:
        flow_run: The id of the flow run.
        end: The final state, usually Crashed.
    """
    # The run may be on another server.
    with suppress(*API_ERRORS), client_without_retries() as client:
        state = client.read_flow_run(flow_run).state
        if state and state.type in _NOT_CHANGED:
            return
        if state is None or not state.is_final():
            client.set_flow_run_state(flow_run, end, force=True)
            state = end
        # As Prefect's server does for a cancelled flow run, at some later time.
        _end_task_runs(client, flow_run, state)


def _end_task_runs(client: SyncPrefectClient, flow_run: UUID, end: State[Any]) -> None:
    """Set the state of the task runs of a flow run that have no final one."""
    # Read all pages first, because a new state may change the order of the pages.
    for run in list(_task_runs_of(client, flow_run)):
        if run.state is None or not run.state.is_final():
            client.set_task_run_state(run.id, end, force=True)


def _task_runs_of(client: SyncPrefectClient, flow_run: UUID) -> Iterator[TaskRun]:
    """Yield the task runs of a flow run, at most `_MOST_TASK_RUNS`."""
    this_run = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run]))
    for offset in range(0, _MOST_TASK_RUNS, _PAGE):
        page = client.read_task_runs(flow_run_filter=this_run, limit=_PAGE, offset=offset)
        yield from page
        if len(page) < _PAGE:
            return


class TaskRunEnd(NamedTuple):
    """How a task run ended, according to its flow run."""

    id: UUID
    name: str
    state: State[Any]


def record_ends(
    flow_run: UUID, task: Task[..., Any], ends: Iterable[TaskRunEnd], *, after_outage: bool = False
) -> None:
    """Record in Prefect how task runs ended, if their own events are missing.

    A killed process does not send the event about its end. The events that it sent before may also
    be lost. An error of the server is logged, because the run itself does not need these records.

    Args:
        flow_run: The id of the flow run.
        task: The task of the task runs.
        ends: How each task run ended.
        after_outage: The server did not respond during the run, so it may lack any event. Wait for
            the server like Prefect's client, and record the end of the other task runs, too.
    """
    with _recording(patient=after_outage) as client:
        known = {run.id: run.state for run in _task_runs_of(client, flow_run)}
        for end in ends:
            try:
                # Look again: the event may have arrived since, and Prefect rejects duplicates.
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
            # A task run that was killed for a cancellation is recorded as crashed.
            is_misnamed = recorded and recorded.is_crashed() and end.state.is_cancelled()
            if recorded is None or not recorded.is_final() or is_misnamed:
                client.set_task_run_state(end.id, end.state, force=True)
        if after_outage:
            message = "Prefect's server did not respond when this task run ended."
            _end_task_runs(client, flow_run, Completed(message=message))
