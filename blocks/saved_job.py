"""A job under a name, for deployments, the UI and the command line to start from."""

from typing import Any, Self

from batchmill.blocks.dataset_store import Store
from batchmill.blocks.ray_cluster import RayCluster
from batchmill.blocks.saved import load_saved, saved_name
from prefect.blocks.core import Block
from pydantic import ConfigDict, Field, HttpUrl, model_validator

from batchmill.errors import OptionError
from batchmill.options import ExecutionOptions, InputOptions, PartitionOptions
from batchmill.partitioning import make_partitioning
from batchmill.policy import FailurePolicy


class SavedJob(Block):
    """What to run over which inputs, into where; and what to do about failures.

    Raises OptionError for an option that is out of range.

    Example:
        ```python
        from batchmill.blocks.saved_job import SavedJob

        job = SavedJob.load("BLOCK_NAME")
        ```
    """

    # Pydantic would quote what it refuses, secrets included.
    model_config = ConfigDict(hide_input_in_errors=True)

    _block_type_name = "Saved Job (batchmill)"
    _block_type_slug = "batchmill-saved-job"
    _logo_url = HttpUrl(
        "https://raw.githubusercontent.com/PrefectHQ/prefect/420d0d6a78bb6df1fc18bcf188fdad43c1d22ea9/assets/block-logos/process.png"
    )
    _documentation_url = HttpUrl("https://docs.prefect.io/v3/concepts/blocks")
    _description = "A manifest, a step, a dataset and their settings, to run under one name."

    manifest: str = Field(
        title="Manifest",
        description="CSV, TSV, JSON Lines or Parquet file with a row for each input; or a folder,"
        " a glob, a bucket's prefix. In full: a worker's working folder is a temporary one.",
    )
    step: str = Field(
        title="Step",
        description="The function or Dataset class to run, as package.module:attribute.",
    )
    output: str = Field(
        title="Output",
        description="The dataset: a full path or URL, or a name in the store.",
    )
    params: dict[str, Any] = Field(
        default_factory=dict, title="Params", description="The step's keyword arguments."
    )
    store: Store = Field(default=None, title="Store", description="Where the dataset is.")
    cluster: RayCluster | None = Field(
        default=None,
        title="Ray cluster",
        description="By default, shards run on the machine of the flow run, without Ray.",
    )
    inputs: InputOptions = Field(
        default=InputOptions(),
        title="Inputs",
        description="Which files of the manifest are inputs.",
    )
    partitions: PartitionOptions = Field(
        default=PartitionOptions(),
        title="Partitions",
        description="How the rows of the tables are assigned to partitions.",
    )
    execution: ExecutionOptions = Field(
        default=ExecutionOptions(),
        title="Execution",
        description="How inputs are divided into batches and processes.",
    )
    failures: FailurePolicy = Field(
        default=FailurePolicy(), title="Failures", description="What to do about inputs that fail."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in ("manifest", "step", "output"):
            if not getattr(self, name).strip():
                raise OptionError(f"saved job: {name} is empty. Fill it in.")
        make_partitioning(self.partitions)
        return self

    def parameters(self) -> dict[str, Any]:
        """Return the flow's parameters, by name."""
        return {name: getattr(self, name) for name in type(self).model_fields}


def as_job(job: object) -> Any:
    """Turn block:NAME or NAME into the saved job; what is no text stays what it is.

    Raises OptionError. It is asked of the Prefect API.
    """
    if not isinstance(job, str):
        return job
    return load_saved("--job", saved_name(job) or job, SavedJob)
