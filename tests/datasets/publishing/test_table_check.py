"""A run whose table breaks an expectation publishes nothing, and loses nothing."""

from functools import partial

import pandas as pd
import pytest
from harness.copying_job import CopyingJob, snapshot
from harness.jobs import job_of

from batchmill import OptionError, open_dataset
from batchmill.api.jobs.idle_run import is_idle, run_idle
from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.planning.prepare import prepare
from batchmill.datasets.maintenance.merging import with_merged_parts
from batchmill.datasets.maintenance.verify import advice, verify
from batchmill.errors import StepError

STEP = """
def step(source, out, *, times=1):
    (out / "copy.txt").write_text(source.read_text() * times)
    return {"output": "copy.txt", "length": times * 9 if "0" != source.stem[-1] else None}
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A job over three inputs. Its table has the length of each output, null for the first."""
    monkeypatch.chdir(tmp_path)
    job = CopyingJob(tmp_path, 3)
    job.edit(STEP)
    return job


def expecting(*texts):
    return FailurePolicy(expect=texts)


def run(job, *texts, **options):
    """Run the job with expectations, and return why nothing was published."""
    job.run(policy=expecting(*texts), **options)
    return job.summary.unpublished


def shown(job):
    """Return what a reader of the dataset sees."""
    names = ["metadata.parquet", "metadata.csv", "failures.csv", "report.html"]
    files = {name: (job.dataset / name).read_bytes() for name in names}
    return files, [sample.data for sample in open_dataset(job.dataset)]


def test_a_broken_expectation_leaves_the_dataset_as_it_was(job):
    assert run(job, "length < 10 or length.isna()") == ""
    before = shown(job)
    reason = run(job, "length < 10", "output != ''", times=2, keep_versions=0)
    assert "length < 10: 3 of 3 rows break it" in reason
    assert "    in/00000.txt: length None" in reason
    assert "    in/00002.txt: length 18" in reason
    assert "output != ''" not in reason
    assert shown(job) == before
    broken = pd.read_csv(job.dataset / ".batchmill/runs/000002/broken.csv")
    assert broken["input"].tolist() == [f"in/{name}" for name in job.names]
    assert set(broken["expectation"]) == {"length < 10"}
    assert job.summary.executed == 3
    assert not job.summary.accepted(expecting("length < 10"))


def test_a_corrected_expectation_publishes_without_executing_anything(job):
    run(job, "length < 10 or length.isna()")
    run(job, "length < 10", times=2)
    report = (job.dataset / "report.html").read_bytes()
    assert job.run(policy=expecting("length < 20 or length.isna()"), times=2) == 0
    assert job.summary.unpublished == ""
    assert pd.read_parquet(job.dataset / "metadata.parquet")["length"].max() == 18
    assert (job.dataset / "report.html").read_bytes() != report
    assert [version.number for version in job.ledger.snapshots.versions()] == [1, 3]


@pytest.mark.parametrize("are_merged", [False, True])
def test_a_run_removes_the_files_of_an_earlier_run_that_published_nothing(
    job, are_merged, monkeypatch
):
    if are_merged:
        each_time = partial(with_merged_parts, many=1)
        monkeypatch.setattr("batchmill.runs.run.with_merged_parts", each_time)
    run(job)
    before = shown(job)
    for times in (2, 3):
        assert run(job, "length < 10", times=times, keep_versions=0)
        assert any(name.startswith("merged-") for name in job.ledger.part_names()) == are_merged
        found = {one.path: one.message for one in verify(job.ledger, hash_files=True)}
        assert found == {"metadata.parquet": f"is of run 1: run {times} published nothing"}
        assert shown(job) == before
    assert run(job, times=3) == ""
    assert list(verify(job.ledger, hash_files=True)) == []


def test_a_broken_expectation_of_the_first_run_publishes_nothing(job):
    assert run(job, "length < 9")
    assert {path.name for path in job.dataset.iterdir()} == {".batchmill", "files"}
    found = list(verify(job.ledger))
    assert {one.kind for one in found} == {"unpublished"}
    why = "Why nothing was published: batchmill status 'my data'"
    assert advice("my data", found, repaired=False) == why
    assert run(job) == ""


def test_a_table_that_is_already_published_is_checked(job):
    run(job)
    before = snapshot(job.dataset / "files"), shown(job)
    prepared = prepare(job.job(expect=["length < 9"]))
    assert is_idle(prepared)
    ended = run_idle(prepared)
    assert "length < 9: 3 of 3 rows break it" in str(ended.error)
    assert (snapshot(job.dataset / "files"), shown(job)) == before
    assert run_idle(prepare(job.job())).error is None


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("length == 9", 1),  # A missing value breaks a condition.
        ("length != 10", 1),
        ("length.isna() or length == 9", 0),
        ("length.fillna(9) == 9", 0),
        ("~input.duplicated()", 0),
        ("label in ['none']", 0),
        ("length <= length.mean() and label == 'x'", 3),
    ],
)
def test_a_missing_value_breaks_a_condition_that_does_not_handle_it(job, text, count):
    reason = run(job, text)
    assert (f"{count} of 3 rows" in reason) if count else (reason == "")


def test_an_unknown_column_is_a_broken_expectation(job):
    reason = run(job, "lenght < 10")
    assert "lenght < 10: cannot be evaluated" in reason
    assert "The columns are input, output, label, length." in reason


def test_the_first_rows_are_shown(tmp_path, monkeypatch):
    (tmp_path / "many").mkdir()
    many = CopyingJob(tmp_path / "many", 12)
    monkeypatch.chdir(tmp_path / "many")
    reason = run(many, "length < 9")
    assert reason.count(": length 9") == 10
    assert "    ... and 2 more" in reason
    assert len(pd.read_csv(many.dataset / ".batchmill/runs/000001/broken.csv")) == 12


def test_a_condition_on_the_input_alone_shows_the_inputs_that_break_it(job):
    reason = run(job, "~input.str.contains('00001')")
    assert "1 of 3 rows breaks it\n    in/00001.txt\n" in reason


VECTORS = """
from typing import TypedDict
import numpy as np
import numpy.typing as npt

class Row(TypedDict):
    peak: float
    words: list[str]
    vector: npt.NDArray[np.float32]
    picture: npt.NDArray[np.uint8]

def step(source) -> Row:
    vector, picture = np.full(3, 0.5, np.float32), np.full((2, 3), 7, np.uint8)
    return {"peak": 2.0, "words": ["a"], "vector": vector, "picture": picture}
"""


def test_rows_with_lists_and_tensors_are_recorded(job):
    job.edit(VECTORS)
    assert "peak <= 1.0: 3 of 3 rows break it" in run(job, "peak <= 1.0")
    broken = pd.read_csv(job.dataset / ".batchmill/runs/000001/broken.csv")
    assert broken["words"].tolist() == ['["a"]'] * 3
    assert broken["vector"].tolist() == ["[0.5, 0.5, 0.5]"] * 3
    assert broken["picture"].tolist() == ["[[7, 7, 7], [7, 7, 7]]"] * 3


def test_a_table_without_rows_breaks_nothing(job):
    job.edit("def step(source):\n    raise ValueError('bad')\n")
    assert run(job, "length < 9") == ""


@pytest.mark.parametrize("text", ["length <", "length.to_csv('x') == 1", "length = 2", "a b"])
def test_a_text_that_is_no_condition_is_refused_before_anything_starts(text):
    with pytest.raises(OptionError, match=r"--expect .* is not a condition"):
        FailurePolicy(expect=[text])


SCHEMA = """
import pandera.pandas as pa
LENGTHS = pa.DataFrameSchema({"length": pa.Column(float, pa.Check.lt(10), nullable=True)})
SHORT = pa.DataFrameSchema({"length": pa.Column(float, pa.Check.lt(9)), "width": pa.Column()})
OTHER = 3
"""


def test_a_schema_of_pandera_is_an_expectation(job):
    pytest.importorskip("pandera")
    module = f"{job.module}_schemas"
    (job.folder / f"{module}.py").write_text(SCHEMA)
    assert run(job, f"{module}:LENGTHS") == ""
    reason = run(job, f"{module}:SHORT")
    assert f"{module}:SHORT: does not fit the table: width (column_in_dataframe)." in reason
    assert "3 of 3 rows break it" in reason
    assert "    in/00000.txt: length nan (not_nullable)" in reason
    assert "    in/00001.txt: length 9.0 (less_than(9))" in reason


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("pathlib:Path", OptionError, "is a type, and not a schema"),
        ("no_such_module:SCHEMA", StepError, "no module 'no_such_module' on the import path"),
    ],
)
def test_a_name_that_is_no_schema_is_refused_before_anything_starts(job, name, error, message):
    with pytest.raises(error, match=message):
        prepare(job_of(job.folder / "m.csv", f"{job.module}:step", job.dataset, expect=name))
