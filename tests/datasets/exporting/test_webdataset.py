"""Test that WebDataset itself reads every exported sample once, with its label."""

import tarfile
from collections import Counter

import pandas as pd
import pytest
import webdataset
from harness.exports import animals, expected, export, in_webdataset
from harness.published import publish_rows
from torch.utils.data import DataLoader

from batchmill import OptionError


def read(out, pattern="*.tar"):
    """Read all samples in two workers, shuffled, as a training does."""
    shards = sorted(map(str, out.glob(pattern)))
    dataset = webdataset.WebDataset(shards, shardshuffle=100, seed=1).shuffle(10).map(in_webdataset)
    return [tuple(pair) for pair in DataLoader(dataset, batch_size=None, num_workers=2)]


@pytest.mark.slow
def test_the_library_reads_every_sample_once(tmp_path):
    dataset, out = animals(tmp_path / "d", suffix="JPG"), tmp_path / "x"
    result = export(dataset, out)
    assert len(result.shards) > 4
    found = read(out)
    rows = pd.read_parquet(dataset / "metadata.parquet")
    assert sorted(found) == expected(dataset, rows)
    assert found != sorted(found)
    with tarfile.open(out / "data-000000.tar") as archive:
        names = [member.name for member in archive]
    assert {name.partition(".")[2] for name in names} == {"jpg", "json"}


@pytest.mark.slow
def test_files_whose_names_differ_after_a_dot_stay_two_samples(tmp_path):
    names = ["a/c.b.bin", "a/c.d.bin", "a/c.bin", "a/c.txt", "a/c", "A/C.bin", "b.tar.gz"]
    dataset = publish_rows(
        tmp_path / "d", {name: name for name in names}, label=names, input=["in"] * len(names)
    )
    out = tmp_path / "x"
    export(dataset, out, shard_size=3000)  # The library needs a shard for each worker.
    found = read(out)
    assert sorted(found) == sorted((name.encode(), name) for name in names)


def test_a_json_file_is_not_mistaken_for_its_row(tmp_path):
    dataset, out = publish_rows(tmp_path / "d", {"a.json": "[1]"}, label=["x"]), tmp_path / "x"
    export(dataset, out)
    [sample] = webdataset.WebDataset(str(out / "data-000000.tar"), shardshuffle=False).decode()
    assert sample["json"] == [1]
    assert sample["row.json"]["label"] == "x"


def test_partitions_are_in_different_shards(tmp_path):
    parts = (["train", "test", None] * 8)[:24]
    dataset, out = animals(tmp_path / "d", partition=parts), tmp_path / "x"
    result = export(dataset, out)
    assert Counter(name.partition("-")[0] for name in result.shards).keys() == {
        "train", "test", "unassigned",
    }  # fmt: skip
    only = export(dataset, tmp_path / "y", partitions=("train",))
    assert (only.samples, {name[:6] for name in only.shards}) == (8, {"train-"})
    first = (tmp_path / "y" / "train-000000.tar").read_bytes()
    assert (out / "train-000000.tar").read_bytes() == first


def test_python_values_of_a_row_become_json(tmp_path):
    row = {"when": [pd.Timestamp("2026-01-02")], "many": [[1, None]], "raw": [b"\xff"]}
    dataset = publish_rows(tmp_path / "d", {"a.bin": b"1"}, **row, nan=[float("nan")])
    export(dataset, tmp_path / "x")
    shard = str(tmp_path / "x" / "data-000000.tar")
    [sample] = webdataset.WebDataset(shard, shardshuffle=False).decode()
    assert sample["json"] == {
        "input": "0.src",
        "output": "files/a.bin",
        "when": "2026-01-02T00:00:00",
        "many": [1, None],
        "raw": "/w==",
        "nan": None,
    }


def test_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(OptionError, match="webdataset, huggingface"):
        export(animals(tmp_path / "d"), tmp_path / "x", to="tar")
