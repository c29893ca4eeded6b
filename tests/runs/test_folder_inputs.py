"""Inputs that are folders: a series of pictures, or a Zarr store."""

import os
import shutil
import subprocess
import sys
import zipfile

import pandas as pd
import pytest
from harness.jobs import job_of, run_job
from harness.object_store import upload

from batchmill import ManifestError, OptionError, try_one
from batchmill.api.jobs.reproduction import write_reproduction
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.planning.prepare import prepare
from batchmill.core.planning.run_spec import read_spec
from batchmill.core.storage import LocalStore
from batchmill.datasets.publishing.failure_groups import read_failures

pytestmark = pytest.mark.slow

STEP = """
def join(source, mask=None):
    files = sorted(path for path in source.rglob("*") if path.is_file())
    if any(path.read_text() == "bad" for path in files):
        raise ValueError("bad")
    return {"text": "".join(path.read_text() for path in files), "files": len(files)}
"""
FOLDERS = {"input_kind": "folder"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with two series of files, a lone file, a hidden folder and a dataset."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "joining.py").write_text(STEP)
    for name, texts in {"a": "123", "b": "45"}.items():
        for number, text in enumerate(texts):
            place = tmp_path / "in" / name / "deep" / f"{number}.txt"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
    (tmp_path / "in" / "lone.txt").write_text("?")
    (tmp_path / "in" / ".hidden").mkdir()
    (tmp_path / "in" / "dataset" / ".batchmill").mkdir(parents=True)
    return tmp_path


def run(folder, manifest="in", out="out", **options):
    seen = []
    run_job(manifest, "joining:join", out, seen=seen, options=FOLDERS | options)
    return {outcome.input: outcome for outcome in seen}


def table(out="out"):
    return pd.read_parquet(f"{out}/metadata.parquet").set_index("input")


def test_each_sub_folder_is_an_input(folder):
    assert set(run(folder)) == {"a", "b"}
    assert table()["text"].to_dict() == {"a": "123", "b": "45"}
    assert run(folder) == {}


@pytest.mark.parametrize("change", ["written", "added", "removed", "renamed"])
def test_a_folder_is_executed_again_if_its_files_change(folder, change):
    run(folder)
    place = folder / "in" / "a" / "deep"
    if change == "written":
        (place / "1.txt").write_text("9")
    elif change == "added":
        (folder / "in" / "a" / "more.txt").write_text("")
    elif change == "removed":
        (place / "2.txt").unlink()
    else:
        (place / "2.txt").rename(place / "3.txt")
    assert set(run(folder)) == {"a"}
    assert run(folder) == {}


def test_another_time_executes_nothing(folder):
    run(folder)
    os.utime(folder / "in" / "a" / "deep" / "1.txt", (1, 1))
    assert run(folder) == {}
    assert not len(prepare(job_of("in", "joining:join", "out", **FOLDERS)).plan.touched)


def test_a_table_and_a_glob_list_folders(folder):
    (folder / "m.csv").write_text("input\nin/a/\nin/b\n")
    assert set(run(folder, "m.csv", "listed")) == {"in/a", "in/b"}
    assert set(run(folder, "in/*", "globbed")) == {"a", "b"}
    assert set(run(folder, "in", "chosen", pattern="b*")) == {"b"}


def test_a_missing_folder_is_missing(folder):
    (folder / "m.csv").write_text("input\nin/a\nin/c\n")
    outcomes = run(folder, "m.csv")
    assert {name: outcome.kind for name, outcome in outcomes.items()} == {
        "in/a": "ok",
        "in/c": "missing",
    }
    assert "no such folder" in outcomes["in/c"].message
    assert run(folder, "m.csv") == {}
    shutil.copytree("in/a", "in/c")
    assert set(run(folder, "m.csv")) == {"in/c"}


def test_a_failed_folder_stays_quarantined(folder):
    (folder / "in" / "b" / "deep" / "0.txt").write_text("bad")
    assert run(folder, retries=0)["b"].kind == "failed"
    assert run(folder, retries=0) == {}


def test_files_are_no_folders_and_folders_no_files(folder):
    (folder / "m.csv").write_text("input\nin/a\nin/lone.txt\n")
    with pytest.raises(ManifestError, match=r"line 3: 'in/lone.txt' is a file\. Name a folder"):
        run(folder, "m.csv")
    with pytest.raises(ManifestError, match=r"line 2: 'in/a' is a folder.*--input-kind folder"):
        run(folder, "m.csv", input_kind="file")
    run(folder)
    with pytest.raises(ManifestError, match="is a dataset, whose outputs are files"):
        run(folder, "out", "other")


def test_folders_in_a_bucket_are_fetched(folder, bucket):
    upload(folder / "in", f"{bucket}/in")
    assert set(run(folder, f"{bucket}/in")) == {"a", "b"}
    assert table()["text"].to_dict() == {"a": "123", "b": "45"}
    assert run(folder, f"{bucket}/in") == {}
    (folder / "in" / "b" / "deep" / "1.txt").write_text("6")
    upload(folder / "in", f"{bucket}/in")
    assert set(run(folder, f"{bucket}/in")) == {"b"}


def test_a_folder_has_companions(folder):
    (folder / "mask.txt").write_text("mask")
    (folder / "m.csv").write_text("input,mask\nin/a,mask.txt\nin/b,\n")
    assert set(run(folder, "m.csv", file_columns="mask")) == {"in/a", "in/b"}
    (folder / "mask.txt").write_text("musk")
    assert set(run(folder, "m.csv", file_columns="mask")) == {"in/a"}


def test_one_folder_is_tried(folder):
    made = try_one("in/a", "joining:join", input_kind="folder")
    assert made.rows == [{"text": "123", "files": 3}]
    with pytest.raises(OptionError, match="in/c: no such folder"):
        try_one("in/c", "joining:join", input_kind="folder")


def test_a_bundle_has_all_files_of_a_folder(folder):
    (folder / "in" / "b" / "deep" / "0.txt").write_text("bad")
    run(folder, retries=0)
    ledger = Ledger(LocalStore("out"))
    (group,) = read_failures(ledger.state(), read_spec(ledger, 1)).groups
    assert "--input-kind folder" in group.command
    write_reproduction("out", "b", folder / "b.zip")
    with zipfile.ZipFile("b.zip") as bundle:
        bundle.extractall("other")
    ran = subprocess.run(
        [sys.executable, "other/run.py"], capture_output=True, text=True, timeout=120
    )
    assert "ValueError: bad" in ran.stdout, ran.stderr
