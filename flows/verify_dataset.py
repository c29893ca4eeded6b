"""The flow `verify-dataset`: compare a dataset with its ledger, for example on a schedule."""

from collections import Counter
from typing import Annotated, Any

from batchmill.flows.deployment_checks import refuse_relative
from batchmill.flows.parameter_schema import in_schema, titled
from prefect import flow, get_run_logger
from prefect.artifacts import TableArtifact
from prefect.states import Completed, Failed

from batchmill.core.ledger.open import open_ledger
from batchmill.core.sizes import list_counts
from batchmill.datasets.maintenance.verify import advice, examine
from batchmill.orchestration.artifacts import LiveArtifact, artifact_key
from batchmill.runs.proof import ProofOptions, prove, record_proof

_SHOWN = 1000


@flow(flow_run_name="verify {dataset}")
@titled(hash_files="Compare contents", execute="Make results again")
def verify_dataset(
    dataset: str,
    hash_files: bool = False,
    repair: bool = False,
    execute: Annotated[int, in_schema(minimum=0)] = 0,
) -> Any:
    """Compare a dataset's files with its ledger. The run fails if there is a difference.

    Inputs with the same content in different partitions cause only a warning. So does an earlier
    dataset that cannot be read.

    Args:
        dataset: The folder or URL of the dataset.
        hash_files: Compare the contents of files, not only their sizes.
        repair: Mark the affected inputs for a retry, and remove files that no record refers to.
        execute: Number of results of the last version to make again on the machine of the flow run
            and to compare, a random sample. 0: none.
    """
    refuse_relative(dataset=dataset)
    made = ""
    if execute:
        proof = next(prove(dataset, ProofOptions(count=execute)))
        unwritten = record_proof(proof)
        for line in (*proof.lines(), *([unwritten] if unwritten else [])):
            get_run_logger().info(line)
        if not proof.is_equal:
            return Failed(message=proof.short)
        made = f" {proof.short}."
    differences = examine(open_ledger(dataset), hash_files=hash_files, repair=repair)
    if not differences:
        return Completed(message=f"{dataset} matches its ledger.{made}")
    text = list_counts(Counter(difference.kind for difference in differences))
    rows = [difference._asdict() for difference in differences[:_SHOWN]]
    cut = f". The first {len(rows):,} are shown." if len(rows) < len(differences) else ""
    artifact = TableArtifact(
        key=artifact_key("differences", dataset),
        table=rows,
        description=f"`{dataset}`: {text}{cut}",
    )
    LiveArtifact().show(artifact)
    if all(difference.is_warning for difference in differences):
        return Completed(message=f"{dataset} matches its ledger, with warnings: {text}.{made}")
    remedy = advice(dataset, differences, repaired=repair)
    return Failed(message=f"{dataset}: {text}. {remedy}")
