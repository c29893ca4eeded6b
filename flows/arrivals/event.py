"""The event that tells of new data. It is sent until the server has taken it."""

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
from batchmill.flows.arrivals.watch_target import WatchTarget, server
from batchmill.flows.resources import resource_id
from prefect.client.orchestration import get_client
from prefect.events import Event, Resource
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from batchmill.arrivals import Mark
from batchmill.errors import ServiceError

ARRIVED = "batchmill.data.arrived"
_FIRST_NAMES = 20
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_PATIENCE_SECONDS = 900.0


def payload_of(watched: WatchTarget, batch: Mapping[str, Mark]) -> dict[str, Any]:
    """Return what the event says of a batch of new files."""
    return {
        "source": watched.source,
        "pattern": watched.pattern,
        "count": len(batch),
        "bytes": sum(max(mark.size, 0) for mark in batch.values()),
        "first": sorted(batch)[:_FIRST_NAMES],
    }


def announce(watched: WatchTarget, payload: Mapping[str, Any]) -> None:
    """Send the event, once. Raises ServiceError if the server has not taken it.

    Prefect's own `emit_event` would lose it without a word while the server is away.
    """
    labels = {
        "prefect.resource.id": resource_id("source", watched.source),
        "prefect.resource.name": watched.source,
    }
    if watched.deployment:
        labels["batchmill.deployment"] = watched.deployment
    event = Event(event=ARRIVED, resource=Resource.model_validate(labels), payload=dict(payload))
    try:
        with (
            temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
            get_client(sync_client=True) as client,
        ):
            answer = client.request("POST", "/events", json=[json.loads(event.model_dump_json())])
            answer.raise_for_status()
    except (httpx.HTTPError, PrefectException) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ServiceError(f"{server()} has not taken the event ({reason}).") from error


def pauses() -> Iterator[float]:
    """Yield how many seconds to wait before the next attempt: 1, 2, 4 and so on, at most 60."""
    pause = _FIRST_PAUSE
    while True:
        yield pause
        pause = min(2 * pause, _LONGEST_PAUSE)


def announce_patiently(watched: WatchTarget, payload: Mapping[str, Any]) -> None:
    """Send the event until the server has taken it. Raises ServiceError after a quarter of an hour.

    Who is called again, by a schedule, need not wait longer.
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    for pause in pauses():
        try:
            announce(watched, payload)
        except ServiceError as error:
            if time.monotonic() + pause > deadline:
                raise
            get_run_logger().warning("%s It is tried again.", error)
            time.sleep(pause)
        else:
            return
