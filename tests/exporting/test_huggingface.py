"""Test that `datasets` itself reads an export, with decoded images and audio."""

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import soundfile
from exports import animals, expected, export
from PIL import Image
from published import publish_rows
from torch.utils.data import DataLoader

pytestmark = pytest.mark.slow


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Return datasets.load_dataset, off the network and with its own cache."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import datasets

    return lambda *args, **options: datasets.load_dataset(
        *args, cache_dir=str(tmp_path / "cache"), **options
    )


def as_pair(sample):
    """Return (content, label) of a sample."""
    return sample["file"]["bytes"], sample["label"]


def test_a_plain_folder_has_the_partitions_as_splits(tmp_path, load):
    parts = (["train", "validation", "my part"] * 8)[:24]
    dataset, out = animals(tmp_path / "d", partition=parts), tmp_path / "x"
    export(dataset, out, "huggingface")
    found = load(str(out))
    rows = pd.read_parquet(dataset / "metadata.parquet")
    assert set(found) == {"train", "validation", "my_part"}
    for split, part in [("train", "train"), ("my_part", "my part")]:
        of_split = rows[rows["partition"] == part]
        assert sorted(map(as_pair, found[split])) == expected(dataset, of_split)


def test_a_loader_with_workers_reads_every_sample_once(tmp_path, load):
    dataset, out = animals(tmp_path / "d", suffix="bin"), tmp_path / "x"
    export(dataset, out, "huggingface")
    files = sorted(map(str, (out / "data").glob("*.parquet")))
    found = load("parquet", data_files={"train": files}, split="train", streaming=True)
    loader = DataLoader(found.shuffle(seed=1, buffer_size=5), batch_size=None, num_workers=2)
    rows = pd.read_parquet(dataset / "metadata.parquet")
    assert sorted(map(as_pair, loader)) == expected(dataset, rows)


def test_images_are_decoded(tmp_path, load):
    def png(number):
        file = io.BytesIO()
        Image.new("RGB", (4, 3), (number, 0, 0)).save(file, "png")
        return file.getvalue()

    dataset, out = animals(tmp_path / "d", 6, suffix="png", content=png), tmp_path / "x"
    export(dataset, out, "huggingface")
    found = load(str(out), split="train")
    assert {type(found.features["image"]).__name__, found[0]["image"].size} == {"Image", (4, 3)}
    assert [sample["image"].getpixel((0, 0))[0] for sample in found] == list(range(6))


def test_audio_is_marked_as_audio(tmp_path, load):
    file = io.BytesIO()
    soundfile.write(file, np.zeros(100, np.float32), 8000, format="WAV")
    wave = file.getvalue()
    dataset, out = animals(tmp_path / "d", 2, suffix="wav", content=lambda _: wave), tmp_path / "x"
    export(dataset, out, "huggingface")
    found = load(str(out), split="train")
    assert type(found.features["audio"]).__name__ == "Audio"
    # Decoding needs torchcodec.
    undecoded = found.cast_column("audio", type(found.features["audio"])(decode=False))
    assert undecoded[0]["audio"]["bytes"] == wave
    assert Path(undecoded[0]["audio"]["path"]).suffix == ".wav"


def test_a_column_of_the_table_keeps_its_name(tmp_path, load):
    dataset = publish_rows(tmp_path / "d", {"a.txt": "x"}, file=["mine"], key=["k"])
    export(dataset, tmp_path / "x", "huggingface")
    [sample] = load(str(tmp_path / "x"), split="train")
    assert (sample["file"], sample["key"], sample["file_"]["bytes"]) == ("mine", "k", b"x")
