"""`--num-workers auto`: the number of workers, once a few inputs have been tried."""

from typing import Any

from rich.console import Console

from batchmill.planning.batching import Batching
from batchmill.planning.job import Prepared
from batchmill.step.params import arguments_for

AUTO = "auto"


def batching_of(parameters: dict[str, Any]) -> Batching:
    """Return what a flow's parameters say of batches; `auto` is left open. Raises OptionError."""
    return Batching(**arguments_for(Batching, _without_auto(parameters)))


def measured(
    parameters: dict[str, Any], prepared: Prepared, cores: int, told: Console | None
) -> tuple[dict[str, Any], str]:
    """Return the parameters with a number in the place of `auto`, and why it is that one.

    Where there is nothing to execute, nothing is tried.
    """
    if parameters.get("num_workers") != AUTO or not len(prepared.plan.pending):
        return _without_auto(parameters), ""
    # This imports torch.
    from batchmill.runs.worker_trial import measure_workers

    if told:
        told.print("Trying a few inputs, of which nothing is kept ...")
    workers = measure_workers(prepared, cores)
    return parameters | {"num_workers": workers.number}, workers.reason


def _without_auto(parameters: dict[str, Any]) -> dict[str, Any]:
    kept = dict(parameters)
    if kept.get("num_workers") == AUTO:
        del kept["num_workers"]
    return kept
