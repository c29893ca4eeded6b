"""A run never replaces the results of another step by mistake."""

import shutil

import pandas as pd
import pytest
from harness.jobs import job_of, run_job

from batchmill import OptionError
from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.planning.prepare import prepare

STEPS = """
def length(source, *, factor=1):
    return {"length": factor * len(source.read_text())}

def first(source):
    return {"letter": source.read_text()[0]}
"""


@pytest.fixture
def out(words, tmp_path, monkeypatch):
    """A dataset of the step `length`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.py").write_text(STEPS)
    run_job(words / "manifest.csv", "two:length", tmp_path / "out")
    return tmp_path / "out"


def test_the_results_of_another_step_are_not_replaced(words, out):
    before = pd.read_parquet(out / "metadata.parquet")
    message = (
        f"--output {out}: contains 4 results of the step two:length, and this run's step is "
        "two:first. Choose another output. To replace the results, add --replace-step."
    )
    with pytest.raises(OptionError) as error:
        prepare(job_of(words / "manifest.csv", "two:first", out))
    assert str(error.value) == message
    assert pd.read_parquet(out / "metadata.parquet").equals(before)


def test_inputs_of_another_manifest_are_not_added_to_them_either(words, out, tmp_path):
    shutil.copytree(words, tmp_path / "other")
    (tmp_path / "other" / "a.txt").rename(tmp_path / "other" / "new.txt")
    with pytest.raises(OptionError, match="contains 4 results of the step two:length"):
        prepare(job_of(tmp_path / "other" / "*.txt", "two:first", out))


def test_results_are_replaced_on_request(words, out):
    options = {"options": {"replace_step": True}}
    run_job(words / "manifest.csv", "two:first", out, **options)
    table = pd.read_parquet(out / "metadata.parquet")
    assert list(table["letter"]) == [path[0] for path in ("simple", "scaleable", "pre", "py")]
    # From now on, it is the step of the dataset.
    run_job(words / "manifest.csv", "two:first", out)


def test_other_params_and_another_version_are_no_other_step(words, out, tmp_path):
    run_job(words / "manifest.csv", "two:length", out, factor=2)
    (tmp_path / "two.py").write_text(STEPS.replace("factor *", "3 *"))
    prepare(job_of(words / "manifest.csv", "two:length", out))


def test_failed_results_are_not_protected(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.py").write_text(STEPS.replace("len(", "no_such_function("))
    policy = FailurePolicy(retries=0)
    run_job(words / "manifest.csv", "two:length", tmp_path / "out", policy=policy)
    assert run_job(words / "manifest.csv", "two:first", tmp_path / "out").outcomes == {"ok": 4}
