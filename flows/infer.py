"""A flow that runs a model over every input: the form asks for the model, not for a step."""

from pathlib import Path
from typing import Annotated, Any, Literal

from batchmill.blocks.dataset_store import Store
from batchmill.blocks.ray_cluster import RayCluster, as_cluster
from batchmill.flows.deployment_checks import refuse_relative
from batchmill.flows.parameter_schema import at_least, more_than, titled
from batchmill.flows.preprocess import preprocess
from prefect import flow
from prefect.runtime import flow_run
from pydantic import BeforeValidator

from batchmill.inference.model_step import is_model_file, make_inference
from batchmill.policy import DEFAULT_RETRIES, DEFAULT_TIMEOUT_SECONDS

# The form begins with it; nobody changes it.
_NO_CLASSES: list[str] = []


def _run_name() -> str:
    """Name a flow run after what it makes, with which model."""
    parameters = flow_run.get_parameters()
    return f"{Path(str(parameters['output'])).name}: {Path(str(parameters['model'])).name}"


@flow(name="infer", flow_run_name=_run_name)
@titled(
    num_workers="DataLoader workers",
    timeout_seconds="Time limit in seconds",
    max_failures="Failures allowed",
    wait="Wait for another run",
    cluster="Ray cluster",
)
def infer(
    manifest: str,
    model: str,
    output: str,
    weights: str | None = None,
    load: str | None = None,
    collate: str = "default",
    device: str = "auto",
    classes: list[str] = _NO_CLASSES,
    predictions: Literal["rows", "files"] = "rows",
    input_column: str = "input",
    root: str | None = None,
    pattern: str = "*",
    batch_size: Annotated[int | None, at_least(1)] = None,
    num_workers: Annotated[int | None, at_least(0)] = None,
    retries: Annotated[int, at_least(0)] = DEFAULT_RETRIES,
    timeout_seconds: Annotated[float | None, more_than(0)] = DEFAULT_TIMEOUT_SECONDS,
    memory_limit: str | None = None,
    max_failures: str = "0",
    fail_fast: bool = False,
    force: bool = False,
    prune: bool = False,
    wait: bool = False,
    cluster: Annotated[RayCluster | None, BeforeValidator(as_cluster)] = None,
    store: Store = None,
) -> Any:
    """Run a model over every input that a manifest lists.

    Args:
        manifest: A dataset, whose outputs are the inputs; or a CSV, TSV, JSON Lines or Parquet
            file with a row for each input, a folder, or a glob.
        model: A file (.pt2 of torch.export; .pt, .pth, .ts of TorchScript), or
            package.module:function, which makes the model.
        output: The dataset of predictions: a folder or URL, new or of an earlier run, which then
            goes on.
        weights: A file that the function which makes the model is called with; what it holds is
            part of what is done.
        load: How inputs are opened: tensor, array, audio, image, text, json, or
            package.module:function of a path. By default, by their suffix.
        collate: How samples become a batch: default (torch's), pad (to the longest), or
            package.module:function.
        device: Where the model runs: auto, cpu, cuda, cuda:1.
        classes: Names of the model's outputs; rows then have the one predicted, and its
            probability.
        predictions: As rows of the table, or as a file for each input.
        input_column: The manifest's column that has the inputs' paths.
        root: The folder that relative inputs are relative to; inputs must lie below it. By
            default, the manifest's folder.
        pattern: Of a folder or dataset, only files whose name or relative path fits it.
        batch_size: Inputs in a batch for the model. By default, from the number of inputs and
            cores.
        num_workers: DataLoader workers in each shard, which open inputs. By default, the
            machine's cores, at most 8.
        retries: How often an input may be executed again for its own faults.
        timeout_seconds: After so many seconds at one input or batch, its process is killed.
        memory_limit: With more memory at one input, as 2G or 500M, its worker is killed.
        max_failures: With more inputs than these not ok, a number or a share as 2%, the run is
            Failed.
        fail_fast: With more failures than that, stop early: what is not begun stays pending.
        force: Execute all inputs, also those that are done.
        prune: Remove the files and rows of inputs that the manifest no longer lists.
        wait: If another run is going on over the dataset, wait for its end.
        cluster: The Ray cluster that runs the shards. By default, they run on the machine of the
            flow run, without Ray.
        store: Where the dataset is, and the credentials for it: the output may then be a name in
            it.
    """
    refuse_relative(model=model if is_model_file(model) else None, weights=weights)
    work = make_inference(
        model=model,
        weights=weights,
        load=load,
        collate=collate,
        device=device,
        classes=classes,
        predictions=predictions,
    )
    return preprocess.fn(
        manifest,
        work.step,
        output,
        params=work.params,
        input_column=input_column,
        root=root,
        pattern=pattern,
        batch_size=batch_size,
        num_workers=num_workers,
        retries=retries,
        timeout_seconds=timeout_seconds,
        memory_limit=memory_limit,
        max_failures=max_failures,
        fail_fast=fail_fast,
        force=force,
        prune=prune,
        wait=wait,
        cluster=cluster,
        store=store,
    )
