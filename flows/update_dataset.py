"""The flow `update-dataset`: run the recorded job of a dataset again."""

from typing import Annotated, Any

from batchmill.blocks.ray_cluster import RayCluster, as_cluster
from batchmill.flows.deployment_checks import check_blocks, refuse_relative
from batchmill.flows.parameter_schema import titled
from batchmill.flows.preprocess import preprocess
from prefect import flow
from prefect.states import Completed, Failed
from pydantic import BeforeValidator

from batchmill.core.options.job_options import RunOptions
from batchmill.core.planning.job import make_job
from batchmill.core.planning.prepare import prepare
from batchmill.core.planning.recorded_job import RecordedJob, jobs_to_update, why_not_updated


# Inputs have retries of their own. A second run would not execute failed inputs again.
@flow(flow_run_name="update {dataset}", retries=0)
@titled(deep="First the datasets that its inputs are from", cluster="Ray cluster")
def update_dataset(
    dataset: str,
    deep: bool = False,
    cluster: Annotated[RayCluster | None, BeforeValidator(as_cluster)] = None,
) -> Any:
    """Run the recorded job of a dataset again: its manifest, step, params and options.

    A dataset that has nothing to do starts no run.

    Args:
        dataset: The folder or URL of the dataset.
        deep: First update the datasets that its inputs are from. If one fails, stop.
        cluster: The Ray cluster that runs the shards. Default: the machine of the flow run.
    """
    refuse_relative(dataset=dataset)
    check_blocks(None, cluster)
    sentence = ""
    for job in jobs_to_update(dataset, deep=deep):
        if _is_up_to_date(job):
            sentence = f"{job.output}: nothing has changed"
            continue
        parameters = {"manifest": job.manifest, "step": job.step, "params": dict(job.params)}
        parameters |= {"output": job.output, "cluster": cluster} | job.options.parameters()
        # Another run may hold the dataset, for example one that new files have started.
        state: Any = preprocess(**parameters | {"run": RunOptions(wait=True)}, return_state=True)
        sentence = f"{job.output}: {state.message}"
        if state.is_cancelled():
            return state
        if not state.is_completed():
            why = why_not_updated(dataset, job.output)
            return Failed(message=f"{sentence} {why}".rstrip())
    return Completed(message=sentence)


def _is_up_to_date(job: RecordedJob) -> bool:
    """Return whether a run would change nothing. Then it needs no flow run."""
    prepared = prepare(make_job(**vars(job)))
    is_unchanged = prepared.plan.counts["unchanged"] == len(prepared.manifest)
    return is_unchanged and not len(prepared.plan.absences)
