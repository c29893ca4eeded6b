"""Rows that name several files: `File` as the value of a key."""

import json
import tarfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from harness.jobs import run_job
from torch.utils.data import DataLoader

from batchmill import File, open_dataset
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.table_metadata import TableMetadata
from batchmill.core.storage import LocalStore
from batchmill.core.user_step.load import load_step
from batchmill.datasets.exporting.run_export import export_dataset
from batchmill.datasets.maintenance.verify import verify
from batchmill.runs.inputs.single_input import run_single_input
from batchmill.runs.proof import ProofOptions, prove

STEP = """
import json
import numpy as np
from batchmill import File

def halves(source, out):
    value = int(source.read_text())
    for name in ("left", "right"):
        np.save(out / f"{name}.npy", np.array([value, len(name)]))
    yield {"left": File("left.npy"), "right": File(out / "right.npy"), "label": value % 2}

def with_output(source, out):
    (out / "text.txt").write_text(source.read_text())
    row = {"output": "text.txt"}
    if source.read_text() == "1":
        (out / "mask.json").write_text("[1]")
        row["mask"] = File("mask.json")
    return row

def with_text(source, out):
    row = with_output(source, out)
    return {"mask": "", **row}

def with_first(source, out):
    (out / "text.txt").write_text("second")
    row = {"output": "text.txt"}
    if source.read_text() == "0":
        (out / "mask.json").write_text("[0]")
        row["mask"] = File("mask.json")
    return row

def alike(source, out):
    for name in "abcd":
        (out / f"{name}.json").write_text("1")
    files = {"a b": File("b.json"), "A-B": File("c.json"), "row": File("d.json")}
    return {"output": "a.json", **files}

def nested(source, out):
    (out / "a.txt").write_text("a")
    return {"files": [File("a.txt")]}

def absent(source, out):
    return {"mask": File("mask.png")}

def measure(source, right):
    return {"sum": int(np.load(source).sum() + np.load(right).sum())}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dividing.py").write_text(STEP)
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text(str(number))
    (tmp_path / "m.csv").write_text("input\n0.txt\n1.txt\n2.txt\n3.txt\n")
    return tmp_path


def run(folder, step="halves", manifest="m.csv", out="out", **options):
    seen = []
    run_job(folder / manifest, f"dividing:{step}", folder / out, seen=seen, options=options)
    return seen


def table(folder, out="out"):
    return pd.read_parquet(folder / out / "metadata.parquet").set_index("input")


@pytest.mark.parametrize("options", [{}, {"pack": "1MB"}], ids=["files", "packs"])
def test_a_sample_has_the_files_of_its_row(folder, options):
    run(folder, **options)
    rows = table(folder)
    assert (rows["output"] == rows["left"]).all()
    if not options:
        assert np.load(folder / "out" / rows.loc["3.txt", "right"]).tolist() == [3, 5]
    samples = open_dataset(folder / "out", columns=["right"])
    assert samples._fields == ("id", "data", "label", "right")
    seen = {
        (int(left), int(length), int(right))
        for batch in DataLoader(samples, batch_size=2, num_workers=1)
        for (left, length), (right, _) in zip(
            batch.data.tolist(), batch.right.tolist(), strict=True
        )
    }
    assert seen == {(number, 4, number) for number in range(4)}
    assert not list(verify(Ledger(LocalStore(folder / "out")), hash_files=True))


def test_samples_of_several_files_in_a_bucket(folder, bucket):
    run_job(folder / "m.csv", "dividing:halves", f"{bucket}/out")
    samples = open_dataset(f"{bucket}/out", columns=["right"])
    batches = list(DataLoader(samples, batch_size=4, num_workers=1))
    assert batches[0].right.tolist() == [[number, 5] for number in range(4)]
    assert samples[2].right.tolist() == [2, 5]


@pytest.mark.parametrize("options", [{}, {"pack": "1MB"}], ids=["files", "packs"])
def test_the_files_of_a_row_are_files_of_the_next_step(folder, options):
    run(folder, **options)
    run(folder, "measure", "out", "sums", file_columns="right")
    assert table(folder, "sums")["sum"].to_list() == [2 * n + 9 for n in range(4)]
    assert run(folder, "measure", "out", "sums", file_columns="right") == []


def test_a_row_without_the_file_has_none(folder):
    run(folder, "with_output")
    assert [sample.mask for sample in open_dataset(folder / "out", columns=["mask"])] == [
        None,
        [1],
        None,
        None,
    ]


@pytest.mark.parametrize("options", [{}, {"pack": "1MB"}])
def test_a_row_may_have_a_text_instead_of_a_further_file(folder, options):
    run(folder, "with_text", **options)
    samples = open_dataset(folder / "out", columns=["mask"])
    assert [sample.mask for sample in samples] == [None, [1], None, None]


def test_a_file_inside_a_list_and_a_file_that_was_not_written_fail(folder):
    for name, confine in (("a", False), ("c", True)):
        message = run(folder, "nested", out=name, confine=confine)[0].message
        assert message == "'files' has a File in a list or dict. Give each file a key of the row."
    message = run(folder, "absent", out="b")[0].message
    assert "named but not written: mask.png" in message
    assert "a key of a row with the value File(name)" in message


def test_a_confined_step_names_several_files(folder):
    run(folder, confine=True)
    assert [sample.right[0] for sample in open_dataset(folder / "out", columns=["right"])] == [
        0,
        1,
        2,
        3,
    ]


def test_a_tried_step_keeps_the_names_of_its_files(folder):
    step = load_step("dividing:halves", search=str(folder))
    rows = json.loads(run_single_input(step, "1.txt", {}, folder / "kept").rows)
    assert rows == [{"left": "left.npy", "right": "right.npy", "label": 1, "output": "left.npy"}]
    assert (folder / "kept" / "right.npy").exists()


def test_the_metadata_of_a_table_survives(folder):
    found = TableMetadata(stale="stale", packs={"output": "pack", "mask": ""})
    schema = pa.schema([], metadata=found.as_arrow())
    assert TableMetadata.of(schema) == found
    assert TableMetadata.of(pa.schema([])) == TableMetadata()
    assert TableMetadata().as_arrow() is None


def test_a_file_has_a_short_text():
    assert repr(File("a.png")) == "File('a.png')"


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"pack": "1MB"}], ids=["files", "packs"])
def test_a_dataset_of_rows_with_several_files_is_proved(folder, options):
    run(folder, **options)
    run(folder, "measure", "out", "second", file_columns="right")
    [proof] = prove(str(folder / "second"), ProofOptions(count=0))
    assert proof.is_equal
    assert proof.made == 4


@pytest.mark.parametrize("options", [{}, {"pack": "1MB"}], ids=["files", "packs"])
def test_a_row_without_a_further_file_may_have_that_of_an_earlier_dataset(folder, options):
    run(folder, "with_output", **options)
    first = pd.read_parquet(folder / "out" / "metadata.parquet")
    assert first["mask"].notna().sum() == 1
    run(folder, "with_first", "out", "second", **options)
    samples = open_dataset(folder / "second", columns=["mask"])
    assert [sample.mask for sample in samples] == [[0], None, None, None]
    assert export_dataset("second", "shards", to="webdataset").samples == 4


def test_members_of_an_export_have_names_of_their_own(folder):
    run(folder, "alike")
    shard = export_dataset("out", "shards", to="webdataset").shards[0]
    with tarfile.open(folder / "shards" / shard) as archive:
        names = [name.lower() for name in archive.getnames()]
    assert len({*names}) == len(names) == 4 * 5
