"""The flow `review-dataset`: show on a sample what a change of the step does to a dataset."""

from typing import Annotated, Any

from batchmill.flows.deployment_checks import finding_step, refuse_relative
from batchmill.flows.parameter_schema import JSON_OBJECT, in_schema, titled
from prefect import flow
from prefect.artifacts import MarkdownArtifact
from prefect.states import Completed

from batchmill.orchestration.artifacts import LiveArtifact, artifact_key
from batchmill.runs.review import review


@flow(flow_run_name="review {dataset}")
@titled(sample="Inputs to execute")
def review_dataset(
    dataset: str,
    params: Annotated[dict[str, Any] | None, JSON_OBJECT] = None,
    step: str = "",
    sample: Annotated[int, in_schema(minimum=1)] = 300,
    seed: int | None = None,
) -> Any:
    """Execute a random sample of a dataset with a changed step, and compare it with the results.

    The new results are discarded. The artifact of the run shows what differs. The name of the state
    is Completed if nothing does, else Different.

    Args:
        dataset: The folder or URL of the dataset. Its recorded job is executed.
        params: Parameters of the step with other values.
        step: Another step, as MODULE:FUNCTION. Empty: the recorded one, as its code is now.
        sample: Number of inputs to execute, on the machine of the flow run.
        seed: Choose the same sample again. Empty: a new one.
    """
    refuse_relative(dataset=dataset)
    with finding_step(step):
        result = review(dataset, params=params or {}, step=step or None, count=sample, seed=seed)
    artifact = MarkdownArtifact(
        key=artifact_key("review", dataset), markdown=result.markdown(), description=result.verdict
    )
    LiveArtifact().show(artifact)
    return Completed(message=result.verdict, name="Completed" if result.is_equal else "Different")
