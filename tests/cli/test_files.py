"""`batchmill files` lists the files of an input, and copies them out of a dataset."""

import json

import pandas as pd
import pytest
from jobs import run_job

STEP = """
def step(source, out):
    (out / "sub").mkdir()
    for name in ("a.txt", "sub/b.txt"):
        (out / name).write_text(f"{name} {source.read_text()}")
        yield {"output": name}
"""


@pytest.fixture(params=[{}, {"pack": "1MB"}], ids=["files", "packs"])
def dataset(words, tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two_files.py").write_text(STEP)
    run_job(words / "manifest.csv", "two_files:step", tmp_path / "out", options=request.param)
    (words / "a.txt").write_text("later")
    run_job(words / "manifest.csv", "two_files:step", tmp_path / "out", options=request.param)
    return tmp_path / "out"


def test_the_files_of_an_input_are_listed_and_copied(dataset, command, tmp_path):
    code, out, _ = command("files", dataset, "a.txt")
    assert code == 0
    assert [line.partition(",")[0] for line in out.splitlines()] == [
        "a.txt: 11 bytes",
        "sub/b.txt: 15 bytes",
    ]
    _, out, _ = command("files", dataset, "a.txt", "--json")
    assert [file["name"] for file in json.loads(out)] == ["a.txt", "sub/b.txt"]
    _, out, _ = command("files", dataset, "a.txt", "-o", tmp_path / "copies")
    assert out.startswith("Copied 2 files to ")
    assert (tmp_path / "copies/sub/b.txt").read_text() == "sub/b.txt later"
    _, _, err = command("files", dataset, "a.txt", "--output", tmp_path / "copies")
    assert "exists already" in err


def test_one_file_of_an_earlier_version(dataset, command, tmp_path):
    code, _, _ = command("files", dataset, "a.txt", "--version", "1", "-o", tmp_path / "old")
    assert code == 0
    assert (tmp_path / "old/a.txt").read_text() == "a.txt simple"
    name = pd.read_parquet(dataset / "metadata.parquet")["output"][1]
    _, out, _ = command("files", dataset, name)
    assert out.startswith("sub/b.txt: ")


@pytest.mark.parametrize("arguments", [("other.txt",), ("a.txt", "--version", "9")])
def test_an_unknown_input_or_version_is_refused(dataset, command, arguments):
    code, _, err = command("files", dataset, *arguments)
    assert code == 2
    assert "there is no such version" in err or "no such input or output" in err
