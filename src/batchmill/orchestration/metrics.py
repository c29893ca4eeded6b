"""Reports a run as OpenTelemetry metrics, if this program has set up their export.

The names and units follow the conventions of OpenTelemetry. Without an SDK, nothing is computed.
"""

import pyarrow as pa
import pyarrow.compute as pc
from opentelemetry import metrics

from batchmill.version import VERSION

# The further columns of the records that the metrics need.
COLUMNS = ("seconds", "size", "outputs")


class RunMetrics:
    """The metrics of one run. Only the process of the flow reports them, also for Ray.

    Args:
        dataset: The dataset's folder or URL.
        step: The reference of the step.
        provider: The provider of the instruments. None: the global provider.
    """

    def __init__(
        self, dataset: str, step: str, provider: metrics.MeterProvider | None = None
    ) -> None:
        self._provider = provider or metrics.get_meter_provider()
        # The providers of an SDK export metrics. The API alone has a provider without this method.
        self.is_on = hasattr(self._provider, "force_flush")
        self._attributes = {"batchmill.dataset": dataset, "batchmill.step": step}
        meter = self._provider.get_meter("batchmill", VERSION)
        self._inputs = meter.create_counter(
            "batchmill.inputs", unit="{input}", description="Inputs with an outcome"
        )
        self._seconds = meter.create_histogram(
            "batchmill.input.duration", unit="s", description="Time of the step for an input"
        )
        self._read = meter.create_counter(
            "batchmill.input.size", unit="By", description="Size of the inputs that were executed"
        )
        self._written = meter.create_counter(
            "batchmill.output.size", unit="By", description="Size of the files that steps wrote"
        )
        self._pending = meter.create_gauge(
            "batchmill.inputs.pending", unit="{input}", description="Inputs without an outcome yet"
        )
        self._runs = meter.create_counter(
            "batchmill.runs", unit="{run}", description="Runs that have ended"
        )

    def record(self, records: pa.Table) -> None:
        """Count outcomes that a run has committed.

        Args:
            records: Records with the columns `outcome`, "seconds", `size` and `outputs`.
        """
        for kind in pc.unique(records["outcome"]).to_pylist():
            of_kind = records.filter(pc.equal(records["outcome"], kind))
            attributes = {**self._attributes, "batchmill.outcome": kind}
            self._inputs.add(len(of_kind), attributes)
            for seconds in of_kind["seconds"].to_pylist():
                self._seconds.record(seconds, attributes)
            sizes = pc.sum(pc.max_element_wise(of_kind["size"], 0)).as_py()
            self._read.add(sizes or 0, attributes)
            files = pc.list_flatten(of_kind["outputs"]).combine_chunks()
            self._written.add(pc.sum(files.field("size")).as_py() or 0, attributes)

    def pending(self, count: int) -> None:
        """Report the number of inputs that have no outcome yet."""
        self._pending.set(count, self._attributes)

    def end(self, state: str) -> None:
        """Count the run, and send what was not sent yet.

        Args:
            state: The name of the flow run's final state.
        """
        self._runs.add(1, {**self._attributes, "batchmill.state": state})
        if self.is_on:
            self._provider.force_flush()  # type: ignore[attr-defined]
