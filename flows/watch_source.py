"""A flow that looks for new data once, to be scheduled: where no process can stay and watch."""

import time
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

from batchmill.flows.arrivals.event import announce_with_retries, make_payload
from batchmill.flows.arrivals.watch_target import read_recorded_files, watched
from batchmill.flows.deployment_checks import refuse_relative
from batchmill.flows.parameter_schema import at_least, titled
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Completed

from batchmill.arrivals import complete_files, new_or_changed
from batchmill.errors import OptionError
from batchmill.storage import is_url

# A run that waits for another's end is put off by so much, again and again.
_PUT_OFF = timedelta(minutes=5)


def _run_name() -> str:
    return f"watch {flow_run.get_parameters()['source']}"


@flow(flow_run_name=_run_name)
@titled()
def watch_source(
    source: str,
    deployment: str,
    pattern: str = "",
    min_age: Annotated[float, at_least(0)] = 60,
) -> Any:
    """Announce what is new in a folder or bucket, in one event that makes a deployment run.

    Args:
        source: The folder, or the bucket's prefix, as s3://bucket/recordings.
        deployment: The deployment to run, for example preprocess/on-arrival. Files that its dataset
            already has are not new.
        pattern: Only files whose name or relative path matches. Default: the deployment's pattern.
        min_age: For a folder: skip files modified less than this many seconds ago. They may still
            be incomplete.
    """
    refuse_relative(source=source)
    found = watched(source, deployment=deployment, pattern=pattern, min_age=min_age)
    if not found.dataset:
        # Else all would be new, each time.
        raise OptionError(
            f"{deployment}: its parameters name no dataset that can be seen from here, so nothing "
            "tells what is new. Give its output as a full path or URL."
        )
    try:
        known = read_recorded_files(found)
    except OptionError as error:
        get_run_logger().warning("All that is there is new: %s", error)
        known = {}
    wall = time.time()
    new = new_or_changed(found.list_files(), known)
    batch = new if is_url(found.source) else complete_files(new, found.min_age, wall)
    left = f"; {len(new) - len(batch):,} are being written" if len(batch) < len(new) else ""
    if not batch:
        return Completed(message=f"nothing new{left}")
    files = "1 new file" if len(batch) == 1 else f"{len(batch):,} new files"
    if found.deployment_id and _is_waiting(found.deployment_id, found.source):
        return Completed(message=f"{files}, which a run takes that is waiting already{left}")
    announce_with_retries(found, make_payload(found, batch))
    return Completed(message=f"{files} announced{left}")


def _is_waiting(deployment: UUID, source: str) -> bool:
    """Tell whether a run of a deployment over a source is about to begin, and look at it then."""
    soon = datetime.now(UTC) + _PUT_OFF
    not_begun = FlowRunFilter(
        deployment_id=FlowRunFilterDeploymentId(any_=[deployment]),
        state=FlowRunFilterState(
            type=FlowRunFilterStateType(any_=[StateType.SCHEDULED, StateType.PENDING])
        ),
    )
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(
            flow_run_filter=not_begun, sort=FlowRunSort.NEXT_SCHEDULED_START_TIME_ASC
        )
    return any(run.parameters.get("manifest") == source and _begins_soon(run, soon) for run in runs)


def _begins_soon(run: FlowRun, soon: datetime) -> bool:
    if run.next_scheduled_start_time is not None:
        return bool(run.next_scheduled_start_time <= soon)
    # Of one that is pending for long, the worker is no more.
    return bool(run.state and run.state.timestamp > soon - 3 * _PUT_OFF)
