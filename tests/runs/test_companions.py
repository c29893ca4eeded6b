"""Inputs of several files: columns of the manifest name the companions of each input."""

import os
import shlex
import subprocess
import sys
import zipfile
from functools import partial

import pandas as pd
import pytest
from harness.jobs import job_of, run_job
from harness.object_store import upload

import batchmill
from batchmill import ManifestError, StepError
from batchmill.api.jobs.reproduction import write_reproduction
from batchmill.cli.main import main
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.planning.prepare import prepare
from batchmill.core.planning.run_spec import read_spec
from batchmill.core.storage import LocalStore
from batchmill.core.user_step.load import load_step
from batchmill.datasets.exporting.run_export import export_dataset
from batchmill.datasets.exporting.verify_export import find_differences
from batchmill.datasets.publishing.failure_groups import read_failures
from batchmill.runs.inputs.single_input import run_single_input
from batchmill.testing import check_step

pytestmark = pytest.mark.slow

STEP = """
def overlay(source, mask, row):
    text = mask.read_text() if mask else "nothing"
    return {"text": source.read_text() + text, "note": open(row["note"]).read()}

class Pairs:
    def __init__(self, sources, mask):
        self.pairs = list(zip(sources, mask))
    def __len__(self):
        return len(self.pairs)
    def __getitem__(self, index):
        source, mask = self.pairs[index]
        return {"text": open(source).read() + (open(mask).read() if mask else "nothing")}
"""
COLUMNS = {"file_columns": "mask,note"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with three inputs: one without a mask, and one note for all."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "overlays.py").write_text(STEP)
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(name)
        (tmp_path / f"{name}_mask.txt").write_text(f" under {name}")
    (tmp_path / "note.txt").write_text("same")
    (tmp_path / "m.csv").write_text(
        "input,mask,note\na.txt,a_mask.txt,note.txt\nb.txt,b_mask.txt,note.txt\nc.txt,,note.txt\n"
    )
    return tmp_path


def run(folder, **options):
    seen = []
    job = options.pop("step", "overlays:overlay")
    run_job(folder / "m.csv", job, folder / "out", seen=seen, options=COLUMNS | options)
    return {outcome.input: outcome for outcome in seen}


def table(folder):
    return pd.read_parquet(folder / "out" / "metadata.parquet").set_index("input")


def test_a_step_receives_the_companions_of_its_input(folder):
    run(folder)
    rows = table(folder)
    assert rows["text"].to_dict() == {
        "a.txt": "a under a",
        "b.txt": "b under b",
        "c.txt": "cnothing",
    }
    assert rows["mask"].dropna().to_dict() == {"a.txt": "a_mask.txt", "b.txt": "b_mask.txt"}
    # The row of a step has the path of the note. The table keeps the value of the manifest.
    assert set(rows["note"]) == {"same"}


def test_a_class_receives_lists_of_companions(folder):
    run(folder, step="overlays:Pairs", file_columns="mask")
    assert table(folder)["text"].to_list() == ["a under a", "b under b", "cnothing"]


def test_a_changed_companion_executes_its_inputs(folder):
    run(folder)
    assert run(folder) == {}

    (folder / "a_mask.txt").write_text(" above a")
    assert set(run(folder)) == {"a.txt"}
    assert table(folder).loc["a.txt", "text"] == "a above a"

    os.utime(folder / "b_mask.txt", (1, 1))
    assert run(folder) == {}, "only the time of b_mask.txt has changed"
    assert not len(prepare(job(folder)).plan.touched), "the new time is recorded"

    (folder / "note.txt").write_text("else")
    assert set(run(folder)) == {"a.txt", "b.txt", "c.txt"}


def test_a_missing_companion_is_named_although_the_result_stays(folder):
    run(folder)
    before = table(folder)
    os.unlink(folder / "a_mask.txt")
    assert run(folder) == {}
    (failure,) = batchmill.failures(folder / "out").to_dict("records")
    assert (failure["input"], failure["outcome"]) == ("a.txt", "missing")
    assert f"{folder}/a_mask.txt: no such file." in failure["message"]
    assert failure["message"].endswith("Its earlier result stays in the dataset.")
    assert table(folder).equals(before)


def job(folder):
    return job_of(folder / "m.csv", "overlays:overlay", folder / "out", **COLUMNS)


def test_another_companion_executes_its_input(folder):
    run(folder)
    text = (folder / "m.csv").read_text()
    # The file has the same size, and is older than the input.
    (folder / "m.csv").write_text(text.replace("a_mask", "b_mask"))
    assert set(run(folder)) == {"a.txt"}
    assert table(folder).loc["a.txt", "text"] == "a under b"


def test_an_input_without_companions_changes_when_it_gets_some(folder):
    (folder / "without_masks.py").write_text(
        "def read(source):\n    return {'text': source.read_text()}\n"
    )
    run(folder, step="without_masks:read", file_columns="")
    assert set(run(folder, step="without_masks:read")) == {"a.txt", "b.txt", "c.txt"}
    assert set(run(folder, step="without_masks:read", file_columns="")) == {
        "a.txt",
        "b.txt",
        "c.txt",
    }
    assert run(folder, step="without_masks:read", file_columns="") == {}


def test_an_input_whose_companion_is_missing_is_missing(folder):
    (folder / "b_mask.txt").unlink()
    seen = run(folder)
    assert {name: outcome.kind for name, outcome in seen.items()} == {
        "a.txt": "ok",
        "b.txt": "missing",
        "c.txt": "ok",
    }
    assert str(folder / "b_mask.txt") in seen["b.txt"].message
    assert run(folder) == {}, "the missing input is quarantined"
    (folder / "b_mask.txt").write_text(" under b")
    assert set(run(folder)) == {"b.txt"}


def test_a_killed_input_is_not_executed_again(folder):
    (folder / "killing.py").write_text(
        "import os\ndef kill(source, mask, note):\n"
        "    if source.name == 'a.txt': os.kill(os.getpid(), 9)\n    return {}\n"
    )
    assert run(folder, step="killing:kill", retries=0)["a.txt"].kind == "crashed"
    assert run(folder, step="killing:kill", retries=0) == {}


def test_most_companions_are_missing(folder):
    for name in "ab":
        (folder / f"{name}_mask.txt").unlink()
    with pytest.raises(ManifestError, match=r"2 of 3 inputs.*a_mask\.txt"):
        prepare(job(folder))


def test_a_bad_file_column_is_a_fault_of_the_manifest(folder):
    with pytest.raises(ManifestError, match=r"no column 'masks' \(found: 'input', 'mask', 'note'"):
        run(folder, file_columns="masks")
    (folder / "m.csv").write_text("input,mask,note\na.txt,.,note.txt\n")
    with pytest.raises(ManifestError, match=r"line 2: '\.' is a folder"):
        run(folder)
    (folder / "m.csv").write_text("input,mask,note\na.txt,../b.txt,note.txt\n")
    with pytest.raises(ManifestError, match=r"line 2: '\.\./b.txt' leaves the root"):
        run(folder, root=str(folder))


def test_a_step_needs_its_companions(folder):
    with pytest.raises(StepError, match="parameter 'mask' is missing"):
        run(folder, file_columns="")


def test_one_input_is_tried_with_its_companions(folder):
    step = load_step("overlays:overlay", search=str(folder), file_columns=["mask", "note"])
    files = {"mask": "a_mask.txt", "note": "note.txt"}
    outcome = run_single_input(step, "a.txt", {}, None, files)
    assert '"text":"a under a"' in outcome.rows.replace(": ", ":")
    for step in ("overlay", "Pairs"):
        files = {"mask": None} | ({"note": "note.txt"} if step == "overlay" else {})
        assert batchmill.try_one("c.txt", f"overlays:{step}", files=files).rows[0]["text"] == (
            "cnothing"
        )


def test_an_input_with_an_empty_cell_is_tried_and_reproduced(folder, capfd):
    (folder / "masked.py").write_text(
        "def step(source, mask):\n    raise ValueError(f'no mask: {mask!r}')\n"
    )
    run(folder, step="masked:step", file_columns="mask")
    ledger = Ledger(LocalStore("out"))
    (command,) = [
        group.command
        for group in read_failures(ledger.state(), read_spec(ledger, 1)).groups
        if "None" in group.message
    ]
    with pytest.raises(SystemExit):
        main(shlex.split(command)[1:])
    assert "ValueError: no mask: None" in capfd.readouterr().out
    write_reproduction("out", "c.txt", folder / "b.zip")
    with zipfile.ZipFile("b.zip") as bundle:
        bundle.extractall("bundle")
    ran = subprocess.run(
        [sys.executable, "bundle/run.py"], capture_output=True, text=True, timeout=60
    )
    assert "ValueError: no mask: None" in ran.stdout, ran.stderr
    assert ran.returncode == 1


def test_numbers_are_names_of_companions(folder):
    (folder / "007").write_text("!")
    (folder / "m.csv").write_text("input,mask,note\na.txt,007,note.txt\nb.txt,007,note.txt\n")
    run(folder)
    assert set(table(folder)["text"]) == {"a!", "b!"}


def test_records_name_the_state_of_companions(folder):
    run(folder)
    records = Ledger(LocalStore(folder / "out")).records(["input", "companions", "content"])
    assert len(set(records["companions"].to_pylist())) == 3
    assert records["companions"].null_count == 0


def test_companions_in_a_bucket_are_fetched(folder, bucket):
    upload(folder, bucket)
    seen = []

    def run_it():
        seen.clear()
        run_job(f"{bucket}/m.csv", "overlays:overlay", folder / "out", seen=seen, options=COLUMNS)
        return {outcome.input for outcome in seen}

    assert run_it() == {"a.txt", "b.txt", "c.txt"}
    assert table(folder)["text"].to_list() == ["a under a", "b under b", "cnothing"]
    assert run_it() == set()
    (folder / "b_mask.txt").write_text(" above b")
    upload(folder, bucket)
    # moto gives equal contents the same ETag.
    assert run_it() == {"b.txt"}
    (folder / "m.csv").write_text("input,mask,note\na.txt,../b.txt,note.txt\n")
    upload(folder, bucket)
    with pytest.raises(ManifestError, match=r"line 2: '\.\./b.txt' "):
        run_it()


def test_a_local_input_has_a_companion_in_a_bucket(folder, bucket):
    upload(folder, bucket)
    (folder / "m.csv").write_text(f"input,mask,note\na.txt,{bucket}/a_mask.txt,note.txt\n")
    run(folder)
    assert table(folder)["text"].to_list() == ["a under a"]
    assert run(folder) == {}


def test_a_step_is_checked_with_companions(folder):
    note = {"note": folder / "note.txt"}
    rows = check_step(
        "overlays:overlay",
        [folder / "a.txt", folder / "c.txt"],
        files=[{"mask": folder / "a_mask.txt", **note}, {"mask": None, **note}],
    )
    assert [row["text"] for row in rows] == ["a under a", "cnothing"]
    rows = check_step("overlays:Pairs", [folder / "c.txt"], files=[{"mask": None}])
    assert rows[0]["text"] == "cnothing"

    (folder / "spoiling.py").write_text(
        "def spoil(source, mask):\n    mask.write_text('spoilt')\n    return {}\n"
    )
    files = [{"mask": folder / "a_mask.txt"}]
    with pytest.raises(AssertionError, match="changed its input"):
        check_step("spoiling:spoil", [folder / "a.txt"], files=files)


def test_inputs_with_companions_are_exported(folder):
    run(folder)
    export = partial(export_dataset, "out", "shards", to="webdataset")
    assert export().samples == 3
    assert not list(find_differences("shards"))
    (folder / "a.txt").write_text("other")
    run(folder)
    assert (export().written, export().written) == (1, 0)
