"""The flow `preprocess`: run one step over every input of a manifest."""

from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

from batchmill.blocks.dataset_store import Store, as_store, place_of_dataset
from batchmill.blocks.ray_cluster import RayCluster, as_cluster
from batchmill.flows.deployment_checks import check_blocks, finding_step, refuse_relative
from batchmill.flows.parameter_schema import JSON_OBJECT, titled
from batchmill.tasks.dataset import load_manifest
from prefect import flow
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed
from pydantic import BeforeValidator

from batchmill.core.options.job_options import JobSettings
from batchmill.core.planning.job import make_job
from batchmill.core.security.credentials import access_to
from batchmill.errors import CancelledError
from batchmill.orchestration.cancellation import Cancellation
from batchmill.orchestration.flow_observer import FlowObserver
from batchmill.orchestration.flow_runner import FlowRunner
from batchmill.orchestration.waiting import SupersededError, WaitingRun
from batchmill.runs.execute import execute
from batchmill.runs.verify_change import verify_change

# The initial value in the form. No code changes it.
_NO_PARAMS: dict[str, Any] = {}


def run_name() -> str:
    """Name a flow run after its dataset, and its step or model."""
    parameters = flow_run.get_parameters()
    model, step = (str(parameters.get(name, "")) for name in ("model", "step"))
    work = Path(model).name or step.rpartition(":")[2]
    return f"{Path(str(parameters['output'])).name}: {work}"


# Inputs have retries of their own. A second run would not execute failed inputs again.
@flow(name="preprocess", flow_run_name=run_name, retries=0)
@titled(run="This run", cluster="Ray cluster")
def preprocess(
    manifest: str,
    step: str,
    output: str,
    params: Annotated[dict[str, Any] | None, JSON_OBJECT] = _NO_PARAMS,
    *,
    cluster: Annotated[RayCluster | None, BeforeValidator(as_cluster)] = None,
    store: Store = None,
    **groups: Any,
) -> Any:
    """Run one step over every input that a manifest lists.

    Args:
        manifest: The inputs: a CSV, TSV, JSON Lines or Parquet file with one row per input, a
            folder, or a glob.
        step: The function or Dataset class to run: package.module:attribute.
        output: The dataset: a folder or URL. A run over an existing dataset resumes it.
        params: The step's keyword arguments, for example {"num_chars": 3}.
        cluster: The Ray cluster that runs the shards. Default: the shards run on the machine of
            the flow run, without Ray.
        store: The store that contains the dataset, with its credentials. The output may then be a
            name in the store.
        **groups: The groups of options, for example failures=FailurePolicy(retries=2).
    """
    dataset_store = as_store(store)
    check_blocks(dataset_store, cluster)
    output = place_of_dataset(dataset_store, output)
    options = JobSettings(**groups)
    refuse_relative(manifest=manifest, output=output, root=options.inputs.root or None)
    job = make_job(manifest=manifest, step=step, output=output, params=params, options=options)
    access = dataset_store.access if dataset_store else []
    cancellation = Cancellation(UUID(flow_run.get_id()))
    wait = WaitingRun(lambda: cancellation.reason) if options.run.wait else None
    observer = FlowObserver(cancellation, wait)
    with access_to(access), cancellation.listening(), finding_step(step):
        try:
            prepared = verify_change(load_manifest(job), is_cancelled=cancellation.is_cancelled)
            lines = prepared.change_check.lines() if prepared.change_check else []
            for line in (*lines, *(change.text for change in prepared.library_changes)):
                get_run_logger().info(line)
            runner = FlowRunner(cluster, access, cancellation, observer, prepared.step)
            ended = execute(prepared, runner, observer)
        except SupersededError as error:
            return Completed(name="Skipped", message=str(error))
        except CancelledError as error:
            return Cancelled(message=str(error))
    return observer.final_state(ended)
