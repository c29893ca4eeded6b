"""A job under a name, for deployments, the UI and the command line to start from."""

from typing import Annotated, Any, Self

from batchmill.blocks.dataset_store import Store
from batchmill.blocks.ray_cluster import RayCluster
from batchmill.blocks.saved import load_saved, saved_name
from prefect.blocks.core import Block
from pydantic import ConfigDict, Field, HttpUrl, model_validator

from batchmill.errors import OptionError
from batchmill.partitioning import make_partitioning
from batchmill.planning.batching import Batching
from batchmill.policy import DEFAULT_RETRIES, DEFAULT_TIMEOUT_SECONDS, make_policy


class SavedJob(Block):
    """What to run over which inputs, into where; and what to do about failures.

    Raises OptionError for a setting that is out of range.

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
    input_column: str = Field(
        default="input",
        title="Input column",
        description="The manifest's column that has the inputs' paths.",
    )
    root: str | None = Field(
        default=None,
        title="Root",
        description="The folder that relative inputs are relative to, and must not leave.",
    )
    pattern: str = Field(
        default="*",
        title="Pattern",
        description="Of a folder, only files whose name or relative path fits it.",
    )
    settle_seconds: Annotated[float, Field(ge=0)] = Field(
        default=0,
        title="Settle seconds",
        description="Of a folder or glob, leave out files that were written to so lately.",
    )
    partition: str | None = Field(
        default=None,
        title="Partitions",
        description="Partitions and their shares, as train=0.8,validation=0.1,test=0.1 or in"
        " percent. The tables then have a column partition.",
    )
    group_by: str | None = Field(
        default=None,
        title="Keep together by column",
        description="Rows with the same value in this column stay in one partition.",
    )
    stratify: str | None = Field(
        default=None,
        title="Stratify by column",
        description="The groups of each value of this column come near the shares.",
    )
    seed: int = Field(default=0, title="Seed", description="Another one divides otherwise.")
    batch_size: Annotated[int, Field(ge=1)] | None = Field(
        default=None, title="Batch size", description="Inputs in a batch. By default, chosen."
    )
    num_workers: Annotated[int, Field(ge=0)] | None = Field(
        default=None,
        title="DataLoader workers",
        description="DataLoader workers in each shard. By default, the machine's cores, at most 8.",
    )
    retries: Annotated[int, Field(ge=0)] = Field(
        default=DEFAULT_RETRIES,
        title="Retries",
        description="How often an input may be executed again for its own faults.",
    )
    timeout_seconds: Annotated[float, Field(gt=0)] | None = Field(
        default=DEFAULT_TIMEOUT_SECONDS,
        title="Time limit in seconds",
        description="After so many seconds at one input, its worker is killed.",
    )
    memory_limit: str | None = Field(
        default=None,
        title="Memory limit",
        description="After so much memory at one input, its worker is killed; as 2G or 500M.",
    )
    max_failures: str = Field(
        default="0",
        title="Failures allowed",
        description="With more inputs than these not ok, a number or a share as 2%, a run is"
        " Failed.",
    )
    fail_fast: bool = Field(
        default=False,
        title="Fail fast",
        description="Then stop early: what is not begun stays pending.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in ("manifest", "step", "output"):
            if not getattr(self, name).strip():
                raise OptionError(f"saved job: {name} is empty. Fill it in.")
        make_partitioning(self.partition, self.group_by, self.stratify, self.seed)
        Batching(batch_size=self.batch_size, num_workers=self.num_workers)
        make_policy(
            retries=self.retries,
            timeout_seconds=self.timeout_seconds,
            memory_limit=self.memory_limit,
            max_failures=self.max_failures,
            fail_fast=self.fail_fast,
        )
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
