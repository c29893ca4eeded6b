"""The Python functions `status`, `failures`, `retry`, `verify` and `try_one`."""

import os

import numpy as np
import pandas as pd
import pytest
from harness.jobs import run_job
from harness.live import STEP_MODULES

import batchmill


@pytest.fixture
def dataset(words, tmp_path, monkeypatch):
    """A dataset in which b.txt has failed."""
    monkeypatch.chdir(STEP_MODULES)
    run_job(words, "steps_under_test:fails_on_b", tmp_path / "out")
    return tmp_path / "out"


def test_failures_are_a_data_frame(dataset):
    failures = batchmill.failures(dataset)
    assert failures["input"].tolist() == ["b.txt"]
    assert failures["outcome"].tolist() == ["failed"]
    assert str(failures["result_run"].dtype) == "Int32", "not 2.0 beside a missing one"
    assert batchmill.failures(dataset, kind="crashed").empty
    with pytest.raises(batchmill.OptionError, match="expected one of failed, timeout"):
        batchmill.failures(dataset, kind=["nosuch"])
    with pytest.raises(batchmill.OptionError, match=r"a\.txt: is not one of the failed inputs"):
        batchmill.failures(dataset, "a.txt")


def test_status_counts_the_inputs_of_the_last_run(dataset, tmp_path):
    found = batchmill.status(dataset)
    assert (found.inputs, found.counts, found.pending) == (5, {"ok": 4, "failed": 1}, 0)
    assert found.failures["input"].tolist() == ["b.txt"]
    assert repr(found).startswith("5 inputs: 4 ok, 1 failed")
    with pytest.raises(batchmill.OptionError, match="no such folder"):
        batchmill.status(tmp_path / "nosuch")


def test_a_run_that_was_killed_before_its_plan_does_not_count(dataset):
    (dataset / ".batchmill" / "runs" / "000002").mkdir()
    assert batchmill.status(dataset).counts == {"ok": 4, "failed": 1}


def test_a_released_input_is_planned_again(dataset, words):
    assert batchmill.retry(dataset, kind=["crashed"]) == []
    assert batchmill.retry(dataset, "b.txt") == ["b.txt"]
    plan = batchmill.plan(words, "steps_under_test:fails_on_b", dataset, batch_size=1)
    assert (plan.pending, plan.counts["retry"], plan.batch_size) == (1, 1, 1)
    assert repr(plan).startswith("1 input to execute (1 retry")
    assert "\nForecast for 1 input, from " in repr(plan)


def test_a_plan_names_what_changed_in_the_step(words, tmp_path):
    step, params = "batchmill.steps.words:split", {"num_chars": 3}
    run_job(words / "manifest.csv", step, tmp_path / "out")
    plan = batchmill.plan(words / "manifest.csv", step, tmp_path / "out", params=params)
    change = "the parameter num_chars changed from 2 to 3"
    assert repr(plan).endswith(f"\nRe-running all inputs: {change}.")


def test_verify_lists_differences(dataset):
    assert batchmill.verify(dataset).empty
    (dataset / "metadata.csv").unlink()
    found = batchmill.verify(dataset)
    assert found[["kind", "path"]].values.tolist() == [["missing", "metadata.csv"]]


def test_a_step_is_tried_on_one_file(words, tmp_path):
    outcome = batchmill.try_one(
        words / "a.txt", "batchmill.steps.words:split", params={"num_chars": 2, "overlap": 0}
    )
    assert outcome.kind == "ok"
    assert [row["part"] for row in outcome.rows] == ["si", "mp", "le"]
    first, *rows = repr(outcome).splitlines()
    assert first.startswith("a.txt: ok in 0.")
    assert first.endswith(" s, 3 rows, 0 files")
    assert rows == [f"  {row}" for row in outcome.rows]
    outcome = batchmill.try_one(words / "a.txt", "batchmill.steps.words:split")
    assert repr(outcome).splitlines()[3:] == [f"  {outcome.rows[2]}", "  ..."]
    with pytest.raises(batchmill.OptionError, match="no such file"):
        batchmill.try_one(tmp_path / "nosuch", "batchmill.steps.words:split")


def test_a_failed_trial_prints_its_traceback(words, monkeypatch):
    monkeypatch.chdir(STEP_MODULES)
    outcome = batchmill.try_one(words / "b.txt", "steps_under_test:fails_on_b")
    assert repr(outcome).startswith("b.txt: failed in 0.")
    assert repr(outcome).endswith(f" s\n{outcome.traceback.rstrip()}")
    assert repr(outcome).endswith("\nValueError: bad header\nand more")
    assert (outcome.kind, outcome.rows, outcome.files) == ("failed", [], [])
    assert "fails_on_b" in outcome.traceback


@pytest.mark.parametrize("group", [np.int64(1), [1], pd.Series([1]), (n for n in [1])])
def test_numbers_of_groups_may_come_from_a_table(dataset, group):
    assert batchmill.failures(dataset, group=group)["input"].tolist() == ["b.txt"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: batchmill.failures(d, group="x"), "expected numbers of groups"),
        (lambda d: batchmill.retry(d, ["b.txt"]), "A list of names needs a star"),
        (lambda d: batchmill.verify(d, execute=1, repair=True), "cannot be combined"),
        (lambda d: batchmill.verify(d, seed=1), "need"),
    ],
)
def test_arguments_that_cannot_be_used_are_explained(dataset, call, message):
    with pytest.raises(batchmill.OptionError, match=message):
        call(dataset)


def test_an_input_whose_name_is_not_utf8_cannot_be_tried(tmp_path):
    place = tmp_path / os.fsdecode(b"caf\xe9.txt")
    place.write_text("word")
    with pytest.raises(batchmill.OptionError, match="its name is not UTF-8"):
        batchmill.try_one(place, "batchmill.steps.words:split")


def test_numbers_of_numpy_are_numbers(dataset, words):
    options = {"max_failures": np.int64(3), "memory_limit": np.int64(2**30)}
    plan = batchmill.plan(words, "steps_under_test:fails_on_b", dataset, **options)
    assert plan.pending == 0
    with pytest.raises(batchmill.OptionError, match="JSON"):
        batchmill.plan(words, "steps_under_test:anything", dataset, params={"key": b"\xff"})
