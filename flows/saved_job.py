"""A flow that runs a saved job: the form has no more to fill in than its name."""

from typing import Annotated, Any

from batchmill.blocks.saved import check_saved
from batchmill.blocks.saved_job import SavedJob, as_job
from batchmill.flows.parameter_schema import titled
from batchmill.flows.preprocess import preprocess
from prefect import flow
from prefect.runtime import flow_run
from pydantic import BeforeValidator


def _run_name() -> str:
    job = flow_run.get_parameters()["job"]
    return f"{job.output.rstrip('/').rpartition('/')[2]}: {job.step.rpartition(':')[2]}"


@flow(name="saved-job", flow_run_name=_run_name)
@titled(job="Saved job", wait="Wait for another run")
def run_saved_job(
    job: Annotated[SavedJob, BeforeValidator(as_job)],
    force: bool = False,
    prune: bool = False,
    wait: bool = False,
) -> Any:
    """Run a saved job, just as it was saved.

    Args:
        job: The saved job: manifest, step, dataset and settings.
        force: Execute all inputs, also those that are done.
        prune: Remove the files and rows of inputs that the manifest no longer lists.
        wait: If another run is going on over the dataset, wait for its end.
    """
    check_saved(job, "job")
    return preprocess.fn(**job.parameters(), force=force, prune=prune, wait=wait)
