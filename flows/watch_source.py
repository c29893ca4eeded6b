"""The flow `watch-source`: check a source once for new data.

Schedule it if no process can watch the source permanently.
"""

import time
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

from batchmill.flows.deployment_checks import refuse_relative
from batchmill.flows.parameter_schema import in_schema, titled
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.logging import get_run_logger
from prefect.states import Completed

from batchmill.core.options.job_options import WATCH_MIN_AGE
from batchmill.core.sizes import counted
from batchmill.core.storage import is_url
from batchmill.core.urls import same_place
from batchmill.errors import OptionError
from batchmill.orchestration.arrivals.detection import complete_files, new_or_changed
from batchmill.orchestration.arrivals.watch_target import read_recorded_versions, watched
from batchmill.orchestration.arrivals.watching import announce_with_retries, make_payload
from batchmill.orchestration.waiting import waiting_runs

# A run that waits for another run to end is rescheduled by this interval.
_PUT_OFF = timedelta(minutes=5)


@flow(flow_run_name="watch {source}")
@titled()
def watch_source(
    source: str,
    deployment: str,
    pattern: str = "",
    min_age: Annotated[float, in_schema(minimum=0)] = WATCH_MIN_AGE,
) -> Any:
    """Announce the new files in a folder or bucket, with one event that starts a deployment.

    Args:
        source: The folder or bucket prefix, for example s3://bucket/recordings.
        deployment: The deployment to run, for example preprocess/on-arrival. Files that its dataset
            already contains are not new.
        pattern: Only files whose name or relative path matches. Default: the deployment's pattern.
        min_age: For a folder: skip files modified less than this many seconds ago. They may still
            be incomplete.
    """
    refuse_relative(source=source)
    target = watched(source, deployment=deployment, pattern=pattern, min_age=min_age)
    if not target.dataset:
        # Without the dataset, every check would announce all files.
        raise OptionError(
            f"{deployment}: the dataset of its runs is unknown, so new files cannot be detected. "
            "Set its parameter `output` to an absolute path or a URL."
        )
    try:
        known = read_recorded_versions(target)
    except OptionError as error:
        get_run_logger().warning("Every file counts as new: %s", error)
        known = {}
    wall = time.time()
    new = new_or_changed(target.list_files(), known)
    batch = new if is_url(target.source) else complete_files(new, target.min_age, wall)
    left = f"; {len(new) - len(batch):,} may still be incomplete" if len(batch) < len(new) else ""
    if not batch:
        return Completed(message=f"nothing new{left}")
    files = counted(len(batch), "new file")
    if target.deployment_id and _is_waiting(target.deployment_id, target.source):
        return Completed(
            message=f"{files}; a run that is already scheduled will process them{left}"
        )
    announce_with_retries(target, make_payload(target, batch))
    return Completed(message=f"{files} announced{left}")


def _is_waiting(deployment: UUID, source: str) -> bool:
    """Return whether a run over this source starts soon. It will find the new files."""
    soon = datetime.now(UTC) + _PUT_OFF
    not_begun = {
        "deployment_id": {"any_": [deployment]},
        "state": {"type": {"any_": [StateType.SCHEDULED, StateType.PENDING]}},
    }
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(
            flow_run_filter=FlowRunFilter.model_validate(not_begun),
            sort=FlowRunSort.NEXT_SCHEDULED_START_TIME_ASC,
        )
        waiting = [run for run in runs if _begins_soon(run, soon)]
        waiting += waiting_runs(client, deployment)
    # The runs of a saved job have no parameter of this name. Its manifest is the source.
    manifests = [str(run.parameters.get("manifest", source)) for run in waiting]
    return any(same_place(manifest, source) for manifest in manifests)


def _begins_soon(run: FlowRun, soon: datetime) -> bool:
    if run.next_scheduled_start_time is not None:
        return bool(run.next_scheduled_start_time <= soon)
    # If a run is pending for long, its worker has probably died.
    return bool(run.state and run.state.timestamp > soon - 3 * _PUT_OFF)
