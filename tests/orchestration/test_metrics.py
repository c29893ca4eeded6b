"""The metrics of a run, with the SDK of OpenTelemetry and without it."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from batchmill.core.ledger.parts import PART_SCHEMA
from batchmill.orchestration.metrics import COLUMNS, RunMetrics

DASHBOARD = Path(__file__).parents[2] / "examples" / "metrics" / "dashboard.json"


def records(*outcomes):
    schema = pa.schema([PART_SCHEMA.field(name) for name in ("outcome", *COLUMNS)])
    file = {"path": "files/a/b", "size": 7, "content": "", "pack": None}
    return pa.Table.from_pylist(
        [
            {
                "outcome": outcome,
                "seconds": 0.5,
                "size": -1 if outcome == "missing" else 10,
                "outputs": [file, file] if outcome == "ok" else [],
            }
            for outcome in outcomes
        ],
        schema,
    )


def values_in(reader):
    """Return the values of all metrics by name, unit and outcome."""
    found = {}
    (resource,) = reader.get_metrics_data().resource_metrics
    for metric in resource.scope_metrics[0].metrics:
        for point in metric.data.data_points:
            assert point.attributes["batchmill.dataset"] == "/data/out"
            assert point.attributes["batchmill.step"] == "a:b"
            kind = point.attributes.get("batchmill.outcome")
            value = point.count if hasattr(point, "count") else point.value
            found[metric.name, metric.unit, kind] = value
    return found


@pytest.fixture
def reported():
    """Return a function that reports two parts of a run, and returns the metrics' values."""

    def report():
        reader = InMemoryMetricReader()
        metrics = RunMetrics("/data/out", "a:b", MeterProvider([reader], shutdown_on_exit=False))
        assert metrics.is_on
        metrics.pending(5)
        metrics.record(records("ok", "failed", "missing"))
        metrics.record(records("ok", "ok"))
        metrics.pending(0)
        found = values_in(reader)
        metrics.end("Completed")
        # Old versions of the SDK report a gauge only once.
        return found | values_in(reader)

    return report


def test_outcomes_are_counted_with_their_times_and_sizes(reported):
    assert reported() == {
        ("batchmill.inputs", "{input}", "ok"): 3,
        ("batchmill.inputs", "{input}", "failed"): 1,
        ("batchmill.inputs", "{input}", "missing"): 1,
        ("batchmill.input.duration", "s", "ok"): 3,
        ("batchmill.input.duration", "s", "failed"): 1,
        ("batchmill.input.duration", "s", "missing"): 1,
        ("batchmill.input.size", "By", "ok"): 30,
        ("batchmill.input.size", "By", "failed"): 10,
        ("batchmill.input.size", "By", "missing"): 0,
        ("batchmill.output.size", "By", "ok"): 42,
        ("batchmill.output.size", "By", "failed"): 0,
        ("batchmill.output.size", "By", "missing"): 0,
        ("batchmill.inputs.pending", "{input}", None): 0,
        ("batchmill.runs", "{run}", None): 1,
    }


def test_without_an_sdk_nothing_is_reported():
    metrics = RunMetrics("/data/out", "a:b", NoOpMeterProvider())
    assert not metrics.is_on
    metrics.end("Completed")


def test_the_dashboard_shows_metrics_that_exist(reported):
    units = {"s": "_seconds", "By": "_bytes"}
    names = set()
    for name, unit, _ in reported():
        names.add(f"{name.replace('.', '_')}{units.get(unit, '')}")
    panels = json.loads(DASHBOARD.read_text())["panels"]
    for query in (target["expr"] for panel in panels for target in panel["targets"]):
        assert any(name in query for name in names), query
