"""Plan a job without running it, for the command line and the Python API."""

from contextlib import ExitStack
from dataclasses import dataclass

from batchmill.api.jobs.request import JobRequest, check_and_plan
from batchmill.core.planning.batching import Layout, cores_of_machine, own_cores
from batchmill.core.planning.forecast import Forecast
from batchmill.core.planning.prepare import Prepared, forecast_for
from batchmill.core.sizes import counted, list_counts
from batchmill.steps.inference.gpus import gpus_for


@dataclass(frozen=True, kw_only=True, repr=False)
class PlanResult:
    """The plan of a run: counts, and how the pending inputs are divided.

    Attributes:
        prepared: The job and its plan.
        layout: How the inputs are divided into shards and batches.
        cores: The number of cores that the layout is made for.
        forecast: The forecast for the pending inputs. None if the step has no outcome yet.
    """

    prepared: Prepared
    layout: Layout
    cores: int
    forecast: Forecast | None = None

    @property
    def counts(self) -> dict[str, int]:
        """The number of inputs by reason: new, changed, retry, unchanged and so on."""
        return dict(self.prepared.plan.counts)

    @property
    def pending(self) -> int:
        """The number of inputs to execute."""
        return len(self.prepared.plan.pending)

    @property
    def shards(self) -> int:
        """The number of shards that the pending inputs are divided into."""
        return self.layout.shards if self.pending else 0

    @property
    def batch_size(self) -> int:
        """The number of inputs per batch."""
        return self.layout.batch_size

    @property
    def num_workers(self) -> int:
        """The number of DataLoader workers per shard."""
        return self.layout.num_workers

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons for this division, one sentence per choice."""
        return self.layout.reasons

    def __repr__(self) -> str:
        listed = list_counts(self.counts) or "no inputs"
        layout = (
            f"{counted(self.pending, 'input')} to execute ({listed}) in "
            f"{counted(self.shards, 'shard')}, batch_size {self.batch_size}, "
            f"num_workers {self.num_workers}"
        )
        forecast = self.forecast.lines() if self.forecast else ()
        return "\n".join([layout, *self.prepared.change_lines(), *forecast])


def plan_job(request: JobRequest, cores: int = 0) -> PlanResult:
    """Check a request and plan its job. Starts nothing and writes nothing.

    Args:
        request: The job.
        cores: The number of cores to plan for. 0: the cores of this machine.

    Returns:
        The plan.

    Raises:
        ManifestError, StepError, OptionError, LedgerError, StoreError: A check failed.
    """
    with ExitStack() as held:
        request, prepared = check_and_plan(request, held)
        gpus = len(gpus_for(prepared.step))
        available = cores_of_machine(cores or own_cores(), gpus)
        forecast = forecast_for(prepared, prepared.state, prepared.plan.pending)
        layout = prepared.layout(available)
    return PlanResult(prepared=prepared, layout=layout, cores=available.total, forecast=forecast)
