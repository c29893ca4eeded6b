"""Forecasts from recorded outcomes, and runs of samples."""

import json

import numpy as np
import pyarrow as pa
import pytest
from harness.jobs import run_job

from batchmill.cli.main import main
from batchmill.core.ledger.open import open_ledger, open_output
from batchmill.core.ledger.parts import Origin
from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.outcome import Outcome, WrittenFile
from batchmill.core.planning.forecast import make_forecast, wilson
from batchmill.datasets.publishing.run_summary import summarise

MIB = 2**20


def forecast(ledger, step, sizes, names=None):
    names = names or [f"new {number}" for number in range(len(sizes))]
    inputs = pa.table([names, sizes, ["new"] * len(sizes)], ["input", "size", "reason"])
    return make_forecast(ledger, ledger.state(), step, inputs)


@pytest.fixture
def record(tmp_path):
    """Return a function that records outcomes, and the ledger.

    An input with `size` MiB takes `size` seconds. Two are in progress at a time.
    """
    ledger = open_output(str(tmp_path / "out"))
    ledger.create()

    def record(sizes, *, failed=(), step="step"):
        ends = np.cumsum(sizes) / 2
        records = []
        for index, (size, end) in enumerate(zip(sizes, ends, strict=True)):
            outcome = Outcome(
                input=f"{step}{index}",
                input_id=str(index),
                kind="failed" if index in failed else "ok",
                attempts=1,
                seconds=float(size),
                finished_at=1000 + float(end) + size / 2,
                host="here",
                rows='[{"a": 1}, {"a": 2}]',
                outputs=(WrittenFile(f"files/{index}/a", 100 * size, ""),),
                size=size * MIB,
            )
            records.append((outcome, Origin("{}", step, 1)))
        ledger.commit("000001-x", records)
        return ledger

    return record


def test_time_bytes_and_rows_follow_the_sizes(record):
    ledger = record([1, 8] * 50)
    found = forecast(ledger, "step", np.array([1] * 1000 + [8] * 100) * MIB)
    assert found.seconds.likely == pytest.approx((1000 + 800) / 2, rel=0.1)
    assert found.seconds.low < found.seconds.likely < found.seconds.high
    assert found.bytes == 100 * (1000 + 800)
    assert found.rows == 2 * 1100
    assert (found.inputs, found.measured) == (1100, 100)


def test_larger_files_than_all_recorded_ones_take_longer(record):
    ledger = record([1] * 50)
    small, large = (forecast(ledger, "step", np.full(100, size * MIB)) for size in (1, 64))
    assert large.seconds.likely == pytest.approx(64 * small.seconds.likely, rel=0.05)


def test_a_run_takes_at_least_as_long_as_its_slowest_input(record):
    found = forecast(record([30] * 20), "step", np.array([30 * MIB]))
    assert found.seconds.likely >= 30


def test_failures_have_an_interval_even_if_none_has_failed(record):
    ledger = record([1] * 100)
    assert forecast(ledger, "step", np.full(1000, MIB)).failures.high > 10
    assert wilson(0.1, 100, 1000).likely == 100
    assert wilson(0.1, 100, 1000).low < 100 < wilson(0.1, 100, 1000).high


def test_failures_count_by_size(record):
    ledger = record([1, 8] * 50, failed=range(1, 100, 2))
    assert forecast(ledger, "step", np.full(300, 8 * MIB)).failures.likely == 300
    assert forecast(ledger, "step", np.full(300, MIB)).failures.likely == 0


def test_inputs_that_failed_before_fail_again_unless_their_cause_is_gone(record):
    ledger = record([1] * 300, failed=range(67))
    before = [f"step{number}" for number in range(67)]
    found = forecast(ledger, "step", np.full(67, MIB), before)
    assert (found.failures, found.failed_before) == ((0, 67, 67), 67)
    assert found.lines()[2] == "  Failures: 67 (0 to 67), with 67 that failed before."
    found = forecast(ledger, "step", np.full(100, MIB), [f"step{n}" for n in range(200, 300)])
    assert found.failures.likely == 0
    assert 0 < found.failures.high < 2


def test_an_input_takes_as_long_as_before(record):
    ledger = record([1] * 99 + [400])
    found = forecast(ledger, "step", np.array([400 * MIB]), ["step99"])
    assert found.seconds.likely >= 400
    found = forecast(ledger, "step", np.array([MIB] * 10), [f"step{n}" for n in range(10)])
    assert found.seconds.likely == pytest.approx(10 / 2, rel=0.1)


def test_outcomes_of_another_step_say_nothing(record):
    assert forecast(record([1] * 10), "another", np.full(10, MIB)) is None
    assert forecast(record([1] * 10), "step", np.array([], np.int64)) is None


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A folder with 40 files, and the arguments of a run over them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sampled.py").write_text(
        "def step(source, out):\n"
        "    text = source.read_text()\n"
        "    if text.startswith('bad'):\n        raise ValueError(text)\n"
        "    (out / 'a').write_text(text)\n"
        "    return {'output': 'a'}\n"
    )
    (tmp_path / "in").mkdir()
    for index in range(40):
        (tmp_path / "in" / f"{index:02d}.txt").write_text("bad" if index % 10 == 0 else "x" * index)
    return ("in", "sampled:step", "out")


def sample(job, count):
    return run_job(*job, options={"sample": count}, policy=FailurePolicy(retries=0))


def test_a_sample_runs_into_the_real_dataset(job):
    summary = sample(job, 12)
    assert (summary.executed, summary.unsampled, summary.pending) == (12, 28, 0)
    assert summary.sentence().endswith(", 28 outside the sample")
    assert summary.accepted(FailurePolicy(max_failures="100%"))
    rest = run_job(*job, policy=FailurePolicy(retries=0))
    assert (rest.executed, rest.unsampled, sum(rest.outcomes.values())) == (28, 0, 40)


def test_a_second_sample_has_other_inputs(job):
    sample(job, 12)
    assert sample(job, 20).executed == 20
    assert sample(job, 20).executed == 8  # No input is outside this sample.
    assert summarise(open_ledger("out"), 3).unsampled == 0


def test_the_usage_of_a_sample_is_recorded(job):
    sample(job, 12)
    usage = open_ledger("out").control.read_usage(1)
    assert usage.cpu_seconds > 0
    assert usage.memory_bytes > MIB


def plan(capsys, job, *options):
    """Run `batchmill plan`; return its exit code and its output."""
    manifest, step, output = job
    with pytest.raises(SystemExit) as ended:
        main(["plan", manifest, "--step", step, "--output", output, *options])
    return ended.value.code, capsys.readouterr()


def test_plan_shows_a_forecast_once_something_has_run(job, capsys):
    _, told = plan(capsys, job)
    assert "Forecast" not in told.out
    sample(job, 12)
    code, told = plan(capsys, job)
    assert code == 0
    assert "Forecast for 28 inputs, from 12 measured:" in told.out
    assert "Memory of a worker: " in told.out
    found = json.loads(plan(capsys, job, "--json")[1].out)["forecast"]
    assert found["inputs"] == 28
    assert found["failures"]["low"] <= found["failures"]["likely"] <= found["failures"]["high"]
