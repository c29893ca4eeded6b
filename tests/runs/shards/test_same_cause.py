"""A run whose first inputs all fail with one cause is stopped, and the others stay pending."""

import pytest
from harness.jobs import run_job

from batchmill.core.failure_causes import SameCause
from batchmill.core.ledger.open import open_ledger
from batchmill.core.ledger.parts import Origin
from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.outcome import Outcome

pytestmark = pytest.mark.slow

COUNT = 300
STEP = """
import time

import helpers

def unknown(source):
    time.sleep(0.01)
    return {"letters": lenght(source.read_text())}

def imports(source):
    time.sleep(0.01)
    import not_installed_anywhere

def of_module(source):
    time.sleep(0.01)
    return helpers.nothing(source)

def in_library(source):
    import json
    time.sleep(0.01)
    return json.loads(source.read_text())["letters"]

def one_is_good(source):
    if source.name != "000.txt":
        unknown(source)

def several_causes(source):
    if int(source.stem) % 20:
        unknown(source)
    raise ValueError("even")
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that runs a step over many files, and returns the summary."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken_steps.py").write_text(STEP)
    (tmp_path / "helpers.py").write_text("")
    (tmp_path / "in").mkdir()
    for number in range(COUNT):
        (tmp_path / "in" / f"{number:03}.txt").write_text("word")

    def run(name, before=None, **policy):
        step, policy = f"broken_steps:{name}", FailurePolicy(**policy)
        return run_job("in", step, "out", policy=policy, batch_size=1, before=before)

    return run


def attempts():
    return open_ledger("out").state().records(["attempts"])["attempts"].to_pylist()


@pytest.mark.parametrize("step", ["unknown", "imports", "of_module"])
def test_an_error_in_the_code_of_the_step_is_not_retried_and_stops_the_run(run, step):
    summary = run(step)
    assert 50 <= summary.executed < COUNT, "a few inputs were in progress"
    assert summary.pending == COUNT - summary.executed
    assert set(attempts()) == {1}
    reason = open_ledger("out").control.stop_reason(1)
    assert reason.startswith("The run was stopped, because its first 5")
    assert reason.endswith("add --stop-after-same 0.")
    assert not summary.accepted(FailurePolicy())


def test_another_error_is_retried_but_stops_the_run(run):
    summary = run("in_library")
    assert 50 <= summary.executed < COUNT
    assert set(attempts()) == {2}
    assert "inputs all failed with one cause: failed: JSONDecodeError: " in open_ledger(
        "out"
    ).control.stop_reason(1)


@pytest.mark.parametrize(
    ("step", "policy"),
    [
        ("one_is_good", {}),
        ("several_causes", {}),
        ("unknown", {"stop_after_same": 0}),
        ("unknown", {"max_failures": "100%"}),
        ("unknown", {"stop_after_same": COUNT + 1}),
    ],
)
def test_a_run_is_not_stopped_for_other_failures(run, step, policy):
    summary = run(step, retries=0, **policy)
    assert (summary.executed, summary.pending) == (COUNT, 0)


def test_an_ok_input_of_another_shard_counts(run):
    def commit():
        outcome = Outcome("in/x", "x", "ok", attempts=1, seconds=1, finished_at=1, host="here")
        open_ledger("out").commit("000001-another-00000", [(outcome, Origin("{}", "s", 1))])

    summary = run("unknown", before=commit)
    assert summary.pending == 0


def test_inputs_without_a_file_say_nothing_and_the_machines_are_counted():
    same = SameCause(2)
    same.add("missing", "FileNotFoundError", "x", "a")
    same.add("failed", "ValueError", "bad byte 1\nmore", "a")
    assert not same.is_reached
    same.add("failed", "ValueError", "bad byte 22\nother", "b")
    assert same.is_reached
    assert same.hosts == {"a", "b"}
    assert same.reason == "failed: ValueError: bad byte 1"
    same.add("ok", "", "", "a")
    assert not same.is_reached
