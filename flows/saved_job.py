"""The flow `saved-job`: run a saved job. Its form needs only the name of the job."""

from typing import Annotated, Any

from batchmill.blocks.saved_block import check_saved
from batchmill.blocks.saved_job import SavedJob, as_job
from batchmill.flows.parameter_schema import titled
from batchmill.flows.preprocess import preprocess
from prefect import flow
from prefect.runtime import flow_run
from pydantic import BeforeValidator

from batchmill.core.options.job_options import RunOptions


def _run_name() -> str:
    job = flow_run.get_parameters()["job"]
    return f"{job.output.rstrip('/').rpartition('/')[2]}: {job.step.rpartition(':')[2]}"


# Inputs have retries of their own. A second run would not execute failed inputs again.
@flow(name="saved-job", flow_run_name=_run_name, retries=0)
@titled(job="Saved job", run="This run")
def run_saved_job(
    job: Annotated[SavedJob, BeforeValidator(as_job)], run: RunOptions = RunOptions()
) -> Any:
    """Run a saved job with its saved parameters.

    Args:
        job: The saved job: manifest, step, dataset and options.
        run: Options for this run only.
    """
    check_saved(job, "job")
    return preprocess.fn(**job.parameters(), run=run)
