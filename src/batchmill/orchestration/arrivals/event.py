"""Send the event about new data to the Prefect server, and retry until the server accepts it."""

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
from prefect.client.orchestration import get_client
from prefect.events import Event, Resource
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger

from batchmill.errors import ServiceError
from batchmill.orchestration.arrivals.detection import FileVersion
from batchmill.orchestration.arrivals.watch_target import WatchTarget, server
from batchmill.orchestration.resource_ids import resource_id
from batchmill.orchestration.server.client_settings import without_retries

ARRIVED = "batchmill.data.arrived"
_FIRST_NAMES = 20
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 60.0
_RETRY_SECONDS = 900.0


def make_payload(target: WatchTarget, batch: Mapping[str, FileVersion]) -> dict[str, Any]:
    """Return the event's payload for a batch of new files.

    Args:
        target: The source of the files.
        batch: The files by name.

    Returns:
        The source, the pattern, the number of files, their bytes and the first names.
    """
    return {
        "source": target.source,
        "pattern": target.pattern,
        "count": len(batch),
        "bytes": sum(max(file.size, 0) for file in batch.values()),
        "first": sorted(batch)[:_FIRST_NAMES],
    }


def announce(target: WatchTarget, payload: Mapping[str, Any]) -> None:
    """Send the event once.

    `emit_event` of Prefect would lose the event without an error while the server is down.

    Args:
        target: The source of the new files, and the deployment to run.
        payload: The result of `make_payload`.

    Raises:
        ServiceError: The server did not accept the event.
    """
    labels = {
        "prefect.resource.id": resource_id("source", target.source),
        "prefect.resource.name": target.source,
    }
    if target.deployment:
        labels["batchmill.deployment"] = target.deployment
    event = Event(event=ARRIVED, resource=Resource.model_validate(labels), payload=dict(payload))
    try:
        with without_retries(), get_client(sync_client=True) as client:
            answer = client.request("POST", "/events", json=[json.loads(event.model_dump_json())])
            answer.raise_for_status()
    except (httpx.HTTPError, PrefectException) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ServiceError(f"{server()} did not accept the event ({reason}).") from error


def retry_pauses() -> Iterator[float]:
    """Yield the seconds to wait before each retry: 1, 2, 4 and so on, at most 60."""
    pause = _FIRST_PAUSE_SECONDS
    while True:
        yield pause
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def announce_with_retries(target: WatchTarget, payload: Mapping[str, Any]) -> None:
    """Send the event, and retry for 15 minutes. Call it within a flow run.

    After that, the next run of the scheduled flow announces the same files.

    Args:
        target: The source of the new files, and the deployment to run.
        payload: The result of `make_payload`.

    Raises:
        ServiceError: The server did not accept the event.
    """
    deadline = time.monotonic() + _RETRY_SECONDS
    for pause in retry_pauses():
        try:
            announce(target, payload)
        except ServiceError as error:
            if time.monotonic() + pause > deadline:
                raise
            get_run_logger().warning("%s Retrying in %g s.", error, pause)
            time.sleep(pause)
        else:
            return
