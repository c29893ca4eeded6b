"""`batchmill infer`: run a model over every input of a manifest."""

from typing import Annotated

from cyclopts import Group, Parameter

from batchmill.cli.early_start import starting_run
from batchmill.cli.options import (
    ClusterOptions,
    JobOptions,
    Json,
    Manifest,
    Model,
    Output,
    Place,
    StoreName,
    Verbose,
    check_given,
)
from batchmill.options.model_options import ModelOptions


def infer(
    manifest: Manifest = "",
    /,
    *,
    model: Annotated[
        Place,
        Parameter(
            group=Group("Model", sort_key=0),
            help="Model file (.pt2 from torch.export; .pt, .pth or .ts from TorchScript), or a "
            "function that makes the model: package.module:function. Required.",
        ),
    ] = "",
    model_options: Model = ModelOptions(),
    output: Output = "",
    store: StoreName = "",
    options: JobOptions = JobOptions(),
    cluster: ClusterOptions = ClusterOptions(),
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run a model over every input of a manifest, and write its predictions as a dataset.

    The manifest can be a dataset. The dataset's output files are then the inputs. Examples:

    ```
    batchmill infer clips --model classifier.pt2 --output predictions --classes cat,dog
    batchmill infer photos/ --pattern '*.jpg' --model mylab.nets:segmenter -o masks
        --predictions files
    ```
    """
    check_given(manifest=manifest, model=model, output=output)
    with starting_run(output, verbose=verbose):
        # Imported here because the import takes half a second.
        from batchmill.cli.run_console import run_and_show
        from batchmill.jobs.run_job import JobRequest

        request = JobRequest(
            manifest=manifest,
            model=str(model),
            model_options=model_options,
            output=output,
            options=options,
            cluster=cluster.cluster(),
            store=store or None,
        )
        run_and_show(request, json=json, verbose=verbose)
