"""`batchmill infer`: a model over every input of a manifest."""

from typing import Annotated, Literal

from cyclopts import Group, Parameter

from batchmill.cli.options import (
    AS_USUAL,
    NO_DATASET_OPTIONS,
    DatasetOptions,
    Manifest,
    RunOptions,
)
from batchmill.cli.running import run_job
from batchmill.errors import OptionError
from batchmill.inference.model_step import make_inference

MODEL = Group("Which model", sort_key=0)


def infer(
    manifest: Manifest | None = None,
    /,
    *,
    model: Annotated[
        str | None,
        Parameter(
            group=MODEL,
            help="A file (.pt2 of torch.export; .pt, .pth, .ts of TorchScript), or "
            "package.module:function, which makes the model. Required.",
        ),
    ] = None,
    weights: Annotated[
        str | None,
        Parameter(
            group=MODEL,
            help="A file that the function which makes the model is called with; what it holds "
            "is part of what is done.",
        ),
    ] = None,
    load: Annotated[
        str | None,
        Parameter(
            group=MODEL,
            help="How inputs are opened: tensor, array, audio, image, text, json, or "
            "package.module:function of a path. Default: by their suffix.",
        ),
    ] = None,
    collate: Annotated[
        str,
        Parameter(
            group=MODEL,
            help="How samples become a batch: default (torch's), pad (to the longest), or "
            "package.module:function.",
        ),
    ] = "default",
    device: Annotated[
        str, Parameter(group=MODEL, help="Where the model runs: auto, cpu, cuda, cuda:1.")
    ] = "auto",
    classes: Annotated[
        str,
        Parameter(
            group=MODEL,
            show_default=False,
            help="Names of the model's outputs, with commas between; rows then have `predicted` "
            "and `probability`.",
        ),
    ] = "",
    predictions: Annotated[
        Literal["rows", "files"],
        Parameter(
            group=MODEL,
            help="Predictions as rows of the table, or as a file for each input (.npy, .pt).",
        ),
    ] = "rows",
    options: DatasetOptions = NO_DATASET_OPTIONS,
    running: RunOptions = AS_USUAL,
) -> None:
    """Run a model over every input of a manifest, and write its predictions as a dataset.

    A dataset is a manifest, too: its outputs are the inputs. Examples:

    ```
    batchmill infer clips --model classifier.pt2 --output predictions --classes cat,dog
    batchmill infer photos/ --pattern '*.jpg' --model mylab.nets:segmenter -o masks
        --predictions files
    ```
    """
    parameters = options.parameters(manifest, {"--model": model})
    names = [name.strip() for name in classes.split(",")] if classes else []
    if not all(names) or len({*names}) < len(names):
        raise OptionError(f"--classes {classes}: a name is empty, or there twice.")
    work = make_inference(
        model=str(model),
        weights=weights,
        load=load,
        collate=collate,
        device=device,
        classes=names,
        predictions=predictions,
    )
    run_job(parameters | work._asdict(), running)
