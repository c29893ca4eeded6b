"""The flow `infer`: run a model over every input. Its form has the model instead of a step."""

from typing import Annotated, Any

from batchmill.blocks.dataset_store import Store
from batchmill.blocks.ray_cluster import RayCluster, as_cluster
from batchmill.flows.deployment_checks import refuse_relative
from batchmill.flows.parameter_schema import titled
from batchmill.flows.preprocess import preprocess, run_name
from prefect import flow
from pydantic import BeforeValidator

from batchmill.core.options.job_options import ModelOptions
from batchmill.steps.inference.model_step import is_model_file, make_inference


# Inputs have retries of their own. A second run would not execute failed inputs again.
@flow(name="infer", flow_run_name=run_name, retries=0)
# A model runs in the process of its shard, which is not confined.
@titled(without=["confinement"], run="This run", cluster="Ray cluster")
def infer(
    manifest: str,
    model: str,
    output: str,
    model_options: ModelOptions = ModelOptions(),
    *,
    cluster: Annotated[RayCluster | None, BeforeValidator(as_cluster)] = None,
    store: Store = None,
    **groups: Any,
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
        cluster: The Ray cluster that runs the shards. Default: the shards run on the machine of
            the flow run, without Ray.
        store: The store that contains the dataset, with its credentials. The output may then be a
            name in the store.
        **groups: The groups of options, as for `preprocess`.
    """
    refuse_relative(
        model=model if is_model_file(model) else None, weights=model_options.weights or None
    )
    work = make_inference(model, model_options)
    return preprocess.fn(
        manifest, work.step, output, work.params, cluster=cluster, store=store, **groups
    )
