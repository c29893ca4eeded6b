"""Samples of several files are exported together, from loose files and from packs."""

import json
from threading import Event

import pytest
from harness.jobs import run_job

from batchmill.datasets.exporting.chosen_samples import choose_rows
from batchmill.datasets.exporting.plan_shards import plan_shards
from batchmill.datasets.exporting.run_export import export_dataset
from batchmill.datasets.exporting.verify_export import find_differences
from batchmill.datasets.exporting.write_shard import digest_samples
from batchmill.datasets.reading.selection import Selection

STEP = """
import json
from batchmill import File
from PIL import Image

def paint(source, out):
    value = int(source.stem)
    Image.new("RGB", (2, 2), (value, 0, 0)).save(out / "picture.png")
    row = {"picture": File("picture.png"), "label": value % 2}
    if value != 2:
        Image.new("L", (2, 2), value).save(out / "mask.png")
        row["mask"] = File("mask.png")
    return row
"""


@pytest.fixture(params=[{}, {"pack": "1MB"}], ids=["files", "packs"])
def painted(tmp_path, monkeypatch, request):
    """A dataset of four rows with pictures, three of them with masks."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "painting.py").write_text(STEP)
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text(str(number))
    (tmp_path / "m.csv").write_text("input\n0.txt\n1.txt\n2.txt\n3.txt\n")
    run_job(tmp_path / "m.csv", "painting:paint", tmp_path / "out", options=request.param)
    return tmp_path / "out"


def test_webdataset_reads_all_files_of_a_sample(painted, tmp_path):
    import webdataset

    out = tmp_path / "wds"
    export_dataset(str(painted), str(out), to="webdataset")
    samples = list(
        webdataset.WebDataset(str(out / "data-000000.tar"), shardshuffle=False).decode("rgb8")
    )
    assert len(samples) == 4
    for number, sample in enumerate(samples):
        assert sample["png"][0, 0, 0] == number
        assert ("mask.png" in sample) == (number != 2)
        assert sample["json"]["label"] == number % 2
    assert samples[3]["mask.png"][0, 0].tolist() == [3, 3, 3]


@pytest.mark.slow
def test_hugging_face_decodes_all_files_of_a_sample(painted, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import datasets

    out = tmp_path / "hf"
    export_dataset(str(painted), str(out), to="huggingface")
    cache = str(tmp_path / "cache")
    samples = list(datasets.load_dataset(str(out), split="train", cache_dir=cache))
    assert [sample["image"].getpixel((0, 0))[0] for sample in samples] == [0, 1, 2, 3]
    masks = [sample["mask"] and sample["mask"].getpixel((0, 0)) for sample in samples]
    assert masks == [0, 1, None, 3]
    assert [sample["label"] for sample in samples] == [0, 1, 0, 1]


@pytest.mark.parametrize("to", ["webdataset", "huggingface"])
def test_verification_reads_all_files_of_a_sample(painted, tmp_path, to):
    out = tmp_path / "export"
    shard = out / export_dataset(str(painted), str(out), to=to).shards[0]
    assert not list(find_differences(str(out)))
    assert export_dataset(str(painted), str(out), to=to).written == 0
    data = bytearray(shard.read_bytes())
    # The last picture of the shard is a mask.
    data[data.rfind(b"IHDR") + 4] ^= 1
    shard.write_bytes(data)
    found = {(one.kind, one.input) for one in find_differences(str(out))}
    assert ("changed", "3.txt") in found
    assert to == "huggingface" or len(found) == 1


def test_a_row_names_its_key(painted, tmp_path):
    import tarfile

    out = tmp_path / "wds"
    export_dataset(str(painted), str(out), to="webdataset")
    with tarfile.open(out / "data-000000.tar") as archive:
        names = archive.getnames()
        row = json.load(archive.extractfile(names[2]))
    key = names[0].partition(".")[0]
    assert names[:3] == [f"{key}.{part}" for part in ("png", "mask.png", "json")]
    assert row["input"] == "0.txt"


def test_another_type_of_a_further_file_is_a_change(painted, tmp_path):
    chosen = choose_rows(Selection(dataset=str(painted)))
    [task] = plan_shards(chosen, "huggingface", str(tmp_path / "hf"), 10**6)
    other = task._replace(further=task.further | {"mask": "file"})
    assert digest_samples(task, Event()) != digest_samples(other, Event())
