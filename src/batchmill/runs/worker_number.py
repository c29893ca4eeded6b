"""Replaces `num_workers="auto"` by a number, after measuring a few inputs."""

from collections.abc import Callable

from batchmill.options.groups import ExecutionOptions
from batchmill.planning.prepare import Prepared

AUTO = "auto"


def resolve_workers(
    execution: ExecutionOptions,
    prepared: Prepared,
    cores: int,
    on_trial: Callable[[], None] = lambda: None,
) -> tuple[ExecutionOptions, str]:
    """Replace "auto" by a number of workers. Also return the reason; "" without a measurement.

    Calls `on_trial` before it executes a few inputs. Without pending inputs, it measures nothing.
    """
    if execution.num_workers != AUTO:
        return execution, ""
    if not len(prepared.plan.pending):
        return execution.model_copy(update={"num_workers": None}), ""
    # This imports torch.
    from batchmill.runs.worker_trial import measure_workers

    on_trial()
    workers = measure_workers(prepared, cores)
    return execution.model_copy(update={"num_workers": workers.number}), workers.reason
