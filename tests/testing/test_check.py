"""Test `check_step`: correct steps pass, and each fault is reported by name."""

import subprocess
import sys
from functools import partial
from threading import Lock

import kit_steps
import numpy as np
import pytest
import soundfile
from harness.live import clean_environment

from batchmill.testing import check_step

pytestmark = pytest.mark.slow


@pytest.fixture
def samples(tmp_path, monkeypatch):
    """Return two texts with one file name. The test has its own working and temporary folders."""
    for name in ("one", "two"):
        (tmp_path / "samples" / name).mkdir(parents=True)
        (tmp_path / "samples" / name / "a.txt").write_text(name)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "here" / "beside_the_test.txt").write_text("x")
    return sorted((tmp_path / "samples").glob("*/a.txt"))


def test_a_function_passes_and_its_rows_are_returned(samples):
    assert check_step(kit_steps.copy, samples, params={"upper": True}) == [
        {"input": "a.txt", "output": "copy.txt", "length": 3},
        {"input": "a.txt", "output": "copy.txt", "length": 3},
    ]
    assert [sample.read_text() for sample in samples] == ["one", "two"]


def test_one_path_is_a_list_of_one(samples):
    assert len(check_step(kit_steps.copy, str(samples[0]))) == 1


def test_a_step_may_use_its_row_and_the_folder_of_its_input(samples):
    rows = check_step("kit_steps:labelled", samples, rows=[{"label": "x"}, {"label": "y"}])
    assert [(row["of"], row["folder"]) for row in rows] == [("x", "one"), ("y", "two")]


def test_rows_have_the_types_of_a_manifest(samples):
    rows = check_step(kit_steps.typed, samples, rows=[{"number": 1, "other": 1}, {"number": 0.5}])
    assert [(row["type"], row["missing"]) for row in rows] == [("float", False), ("float", True)]


def test_a_dataset_class_and_a_list_pass(samples):
    labels = [{"label": "x"}, {"label": "y"}]
    assert [row["letters"] for row in check_step(kit_steps.Letters, samples, rows=labels)] == [3, 3]
    assert [row["item"] for row in check_step("kit_steps:items", samples)] == [1, 2]


def test_a_batch_step_passes(samples):
    assert [row["size"] for row in check_step(kit_steps.Batched, samples)] == [3, 3]


def test_steps_that_come_with_batchmill_pass(samples, tmp_path):
    recordings = []
    for number in range(2):
        recordings.append(tmp_path / f"{number}.wav")
        noise = np.random.default_rng(number).integers(-999, 999, 12_000).astype(np.int16)
        soundfile.write(recordings[-1], noise, 8000)
    assert len(check_step("batchmill.steps.words:split", samples)) == 4
    assert len(check_step("batchmill.steps.audio:split", recordings, params={"seconds": 1})) == 4
    params = {"seconds": 1, "sample_rate": 4000}
    assert len(check_step("batchmill.steps.spectrogram:log_mel", recordings, params=params)) == 4


def test_removed_temporary_files_and_missing_values_are_accepted(samples):
    check_step(kit_steps.cleans_up, samples[:1])


def test_a_companion_may_have_the_name_of_its_input_and_of_its_folder(tmp_path):
    places = [tmp_path / column / "mask" / "a.txt" for column in ("input", "companion")]
    for place in places:
        place.parent.mkdir(parents=True)
        place.write_text(place.parts[-3])
    (row,) = check_step(kit_steps.reads_both, places[:1], files=[{"mask": places[1]}])
    assert row["texts"] == "input companion"


@pytest.mark.parametrize("empty", [{}, {"mask": None}, {"mask": ""}])
def test_each_process_accepts_an_empty_cell_for_a_companion(samples, empty):
    files = [empty, {"mask": samples[0]}]
    rows = check_step(kit_steps.reads_mask, samples, files=files)
    assert [row["mask"] for row in rows] == [None, "one"]
    if empty:
        rows = check_step(kit_steps.reads_mask, samples, files=[empty, empty])
        assert [row["mask"] for row in rows] == [None, None]


# These faults depend on other inputs, so they need a second sample.
NEED_TWO = ("ByPosition", "counts_calls", "removes_what_others_wrote")


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ("raises", "0/one/a.txt is not ok: failed: ValueError: bad header"),
        ("writes_unnamed", "is not ok: failed: OutputError: written but not named: x"),
        ("holds_an_object", "which no table can hold"),
        ("dies", "crashed: exit code 3"),
        ("random_row", "with other workers in another order, its result differs: value: "),
        ("random_bytes", "its result differs: x: 8 bytes -> 8 bytes, other content"),
        ("counts_calls", "its result differs: call: "),
        ("ByPosition", "its result differs: index: "),
        ("returns_its_path", "its result differs: path: "),
        ("order_of_a_set", "in a fresh process, in another folder, its result differs: letters: "),
        ("needs_the_working_directory", "in another folder, it is not ok: failed: FileNotFound"),
        ("changes_its_input", "0/one/a.txt: it changed its input"),
        ("removes_its_input", "0/one/a.txt: it removed or renamed its input"),
        ("writes_beside_its_input", "0/one/a.json: it wrote to its input's folder"),
        ("writes_into_the_dataset", "it wrote files/notes.txt into the dataset, outside of `out`"),
        ("removes_what_others_wrote", "a second run executes it again (damaged)"),
        ("writes_here", "it left a file in its working directory: left.txt"),
        ("leaves_temporary_files", "it left a file in the temporary folder"),
        ("other_identity", "its identity differs in each process: the step's version changed"),
    ],
)
def test_each_fault_is_reported_alone(samples, step, told):
    with pytest.raises(AssertionError) as raised:
        check_step(f"kit_steps:{step}", samples[: 2 if step in NEED_TWO else 1])
    text = str(raised.value)
    assert told in text
    assert ": 1 fault\n" in text, text


def test_a_step_that_cannot_be_repeated_is_reported(samples, tmp_path):
    with pytest.raises(AssertionError, match=r"because an output was deleted, .* FileExistsError"):
        check_step(kit_steps.once_only, samples, params={"marks": str(tmp_path)})


def test_all_faults_are_reported_together(samples):
    with pytest.raises(AssertionError) as raised:
        check_step(kit_steps.raises, samples)
    head, *lines = str(raised.value).splitlines()
    assert head == "step raises, 2 samples: 2 faults"
    assert [line.split(" is not ok")[0] for line in lines] == [
        "  1. 0/one/a.txt",
        "  2. 1/two/a.txt",
    ]


@pytest.mark.parametrize(
    ("step", "options", "told"),
    [
        (partial(kit_steps.copy, upper=Lock()), {}, "contains a lock, which cannot be"),
        ("kit_steps:nothing", {}, "has no 'nothing'"),
        ("kit_steps:copy", {"params": {"upper": object()}}, "cannot be written as JSON"),
        ("kit_steps:copy", {"params": {"lower": 1}}, "unknown parameter 'lower'"),
        ("kit_steps:copy", {"rows": [{}]}, "1 rows for 2 samples"),
        ("kit_steps:copy", {"rows": [{}, {"input": "x"}]}, "the column `input` has the samples"),
        (
            "kit_steps:copy",
            {"files": [{}, {"input": __file__}]},
            "the column `input` has the samples",
        ),
        ("kit_steps:reads_mask", {"files": [{}, {"mask": "no"}]}, "files: no is not a file"),
        ("kit_steps:Letters", {}, "has no column 'label'"),
    ],
)
def test_a_step_that_cannot_be_run_raises_an_assertion_error(samples, step, options, told):
    with pytest.raises(AssertionError, match=told):
        check_step(step, samples, **options)


def test_samples_must_exist(tmp_path):
    for samples in ([], [tmp_path / "nowhere"]):
        with pytest.raises(AssertionError, match="sample"):
            check_step(kit_steps.copy, samples)


@pytest.mark.end_to_end
def test_a_users_pytest_needs_no_plugin_of_batchmill(tmp_path):
    (tmp_path / "mysteps.py").write_text(
        "def size(source, out):\n"
        "    (out / 'n').write_bytes(source.read_bytes())\n"
        "    return {'output': 'n'}\n"
        "def place(source):\n    return {'place': str(source)}\n"
    )
    (tmp_path / "test_mine.py").write_text(
        "from batchmill.testing import check_step\n"
        "from mysteps import size, place\n"
        "def test_size(): assert len(check_step(size, [__file__])) == 1\n"
        "def test_place(): check_step(place, [__file__])\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", "."],
        cwd=tmp_path, capture_output=True, text=True, env=clean_environment(tmp_path / "home"),
    )  # fmt: skip
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "AssertionError: step place, 1 sample: 1 fault" in done.stdout
    assert "batchmill/testing/check.py" not in done.stdout, "the traceback shows lines of batchmill"
