"""A block for a job with a name. Deployments, the UI and the command line can start it."""

from typing import Any, Self

from batchmill.blocks.dataset_store import Store
from batchmill.blocks.ray_cluster import RayCluster
from batchmill.blocks.saved_block import FORM, load_saved, logo, saved_name
from prefect.blocks.core import Block
from pydantic import Field, HttpUrl, model_validator

from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.options.job_options import (
    ConfinementOptions,
    ExecutionOptions,
    InputOptions,
    PartitionOptions,
)
from batchmill.core.options.validation import Described
from batchmill.errors import OptionError


class SavedJob(Described, Block):
    """A manifest, a step, a dataset and their settings.

    Raises OptionError for an option that is out of range.

    Example:
        ```python
        from batchmill.blocks.saved_job import SavedJob

        job = SavedJob.load("BLOCK_NAME")
        ```
    """

    model_config = FORM

    _block_type_name = "Saved Job (batchmill)"
    _block_type_slug = "batchmill-saved-job"
    _logo_url = logo("process")
    _documentation_url = HttpUrl(
        "https://github.com/batchmill/batchmill/blob/main/docs/how-to/saved-blocks.md#a-saved-job"
    )
    _description = "A manifest, a step, a dataset and their settings, to run under one name."

    manifest: str
    """CSV, TSV, JSON Lines or Parquet file with one row per input; or a folder, a glob or a bucket
    prefix. Give a full path: a worker's working folder is temporary."""
    step: str
    """The function or Dataset class to run, as package.module:attribute."""
    output: str
    """The dataset: a full path or URL, or a name in the store."""
    params: dict[str, Any] = Field(default_factory=dict)
    """The step's keyword arguments."""
    failures: FailurePolicy = FailurePolicy()
    """Limits per input, retries and allowed failures."""
    inputs: InputOptions = InputOptions()
    """Options that select the inputs of the manifest."""
    execution: ExecutionOptions = ExecutionOptions()
    """Options that divide inputs into batches and processes."""
    partitions: PartitionOptions = PartitionOptions()
    """Options that assign the rows of the tables to partitions."""
    cluster: RayCluster | None = Field(default=None, title="Ray cluster")
    """Default: shards run on the machine of the flow run, without Ray."""
    store: Store = None
    """Store of the dataset."""
    confinement: ConfinementOptions = ConfinementOptions()
    """Options that confine the step to a few folders."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in ("manifest", "step", "output"):
            if not getattr(self, name).strip():
                raise OptionError(f"saved job: {name} is empty. Fill it in.")
        # Prefect's server also imports this module, and needs no Arrow.
        from batchmill.core.partitions.partitioning import make_partitioning

        make_partitioning(self.partitions)
        return self

    def parameters(self) -> dict[str, Any]:
        """Return the flow's parameters, by name."""
        return {name: getattr(self, name) for name in type(self).model_fields}


def as_job(job: object) -> Any:
    """Fetch the saved job block:NAME or NAME from the Prefect API. Raises OptionError.

    A value that is not a text is returned unchanged.
    """
    if not isinstance(job, str):
        return job
    return load_saved("--job", saved_name(job) or job, SavedJob)
