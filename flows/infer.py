"""The flow `infer`: run a model over every input. Its form has the model instead of a step."""

from typing import Annotated, Any

from batchmill.blocks.dataset_store import Store
from batchmill.blocks.ray_cluster import RayCluster, as_cluster
from batchmill.flows.deployment_checks import refuse_relative
from batchmill.flows.parameter_schema import titled
from batchmill.flows.preprocess import preprocess, run_name
from prefect import flow
from pydantic import BeforeValidator

from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.options.job_options import (
    ConfinementOptions,
    ExecutionOptions,
    InputOptions,
    ModelOptions,
    PartitionOptions,
    RunOptions,
)
from batchmill.steps.inference.model_step import is_model_file, make_inference


# Inputs have retries of their own. A second run would not execute failed inputs again.
@flow(name="infer", flow_run_name=run_name, retries=0)
@titled(run="This run", cluster="Ray cluster")
def infer(
    manifest: str,
    model: str,
    output: str,
    model_options: ModelOptions = ModelOptions(),
    failures: FailurePolicy = FailurePolicy(),
    inputs: InputOptions = InputOptions(),
    execution: ExecutionOptions = ExecutionOptions(),
    partitions: PartitionOptions = PartitionOptions(),
    cluster: Annotated[RayCluster | None, BeforeValidator(as_cluster)] = None,
    store: Store = None,
    run: RunOptions = RunOptions(),
    confinement: ConfinementOptions = ConfinementOptions(),
) -> Any:
    """Run a model over every input that a manifest lists.

    Args:
        manifest: The inputs: a CSV, TSV, JSON Lines or Parquet file with one row per input, a
            folder, or a glob. A dataset also works. Then its outputs are the inputs.
        model: A model file, or package.module:function that makes the model. A file ends in .pt2
            (torch.export) or in .pt, .pth or .ts (TorchScript).
        output: The dataset of predictions: a folder or URL. A run over an existing dataset resumes
            it.
        model_options: How the model is loaded and applied.
        failures: How failed inputs are handled.
        inputs: Which files of the manifest are inputs.
        execution: How inputs are divided into batches and processes.
        partitions: How the rows of the tables are assigned to partitions.
        cluster: The Ray cluster that runs the shards. Default: the shards run on the machine of
            the flow run, without Ray.
        store: The store that contains the dataset, with its credentials. The output may then be a
            name in the store.
        run: Options for this run only.
        confinement: Which files the step may change, and whether it may open connections.
    """
    refuse_relative(
        model=model if is_model_file(model) else None, weights=model_options.weights or None
    )
    work = make_inference(model, model_options)
    return preprocess.fn(
        manifest,
        work.step,
        output,
        params=work.params,
        inputs=inputs,
        partitions=partitions,
        execution=execution,
        confinement=confinement,
        failures=failures,
        run=run,
        cluster=cluster,
        store=store,
    )
