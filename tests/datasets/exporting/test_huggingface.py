"""Test that `datasets` itself reads an export, with decoded images and audio."""

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from harness.exports import animals, expected, export
from harness.published import publish_rows
from PIL import Image
from torch.utils.data import DataLoader

from batchmill.datasets.exporting.verify_export import find_differences
from batchmill.errors import OptionError, StoreError

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


def test_text_files_are_a_text_column(tmp_path, load):
    texts = {"a.txt": "ä\r\n".encode(), "b.md": b"", "c.txt": b"\xef\xbb\xbfx"}
    out = tmp_path / "x"
    export(publish_rows(tmp_path / "d", texts, number=[1, 2, 3]), out, "huggingface")
    found = load(str(out), split="train")
    assert found.features["text"].dtype == "string"
    assert found["text"] == [content.decode() for content in texts.values()]
    assert [*find_differences(str(out))] == []
    shard = out / "data" / "train-00000-of-00001.parquet"
    table = pq.read_table(shard)
    column = pa.array(["ä\r\n", "", "x"], pa.string())
    pq.write_table(table.set_column(1, table.schema.field(1), column), shard)
    assert [one.input for one in find_differences(str(out))] == ["2.src"]


def test_a_text_file_of_another_encoding_is_named(tmp_path):
    dataset = publish_rows(tmp_path / "d", {"a.txt": b"x", "b.txt": b"\xff"})
    with pytest.raises(StoreError, match=r"b\.txt: is not UTF-8 text .* use --to webdataset"):
        export(dataset, tmp_path / "x", "huggingface")
    export(dataset, tmp_path / "x", "huggingface", where="input != '1.src'")


def test_class_labels_are_the_same_in_all_splits_and_parts(tmp_path, load):
    labels = ["dog", "cat", None, "eel", "dog", "cat"]
    parts = ["train", "train", "train", "test", "test", "test"]
    dataset = animals(tmp_path / "d", 6, label=labels, partition=parts)
    for name, chosen in (("all", {}), ("part", {"partitions": ("test",)})):
        out = tmp_path / name
        export(dataset, out, "huggingface", class_labels=["label"], **chosen)
        test = load(str(out), split="test")
        assert test.features["label"].names == ["cat", "dog", "eel"]
        assert test["label"] == [2, 1, 0]
    assert load(str(tmp_path / "all"), split="train")["label"] == [1, 0, None]
    # A new label changes the numbers, and so all shards.
    labels[2] = "bee"
    dataset = animals(tmp_path / "d2", 6, label=labels, partition=parts)
    dataset.rename(tmp_path / "other")
    made = export(tmp_path / "other", tmp_path / "all", "huggingface", class_labels=["label"])
    assert made.written == 2
    assert load(str(tmp_path / "all"), split="test")["label"] == [3, 2, 1]


@pytest.mark.parametrize(
    ("column", "to", "message"),
    [
        ("label", "webdataset", "only --to huggingface"),
        ("nosuch", "huggingface", "nosuch: the table has no such column"),
        ("number", "huggingface", "number: has int64 instead of texts"),
    ],
)
def test_class_labels_that_cannot_be_made_are_refused(tmp_path, column, to, message):
    dataset = animals(tmp_path / "d", 3, number=[1, 2, 3])
    with pytest.raises(OptionError, match=message):
        export(dataset, tmp_path / "x", to, class_labels=[column])
    assert not (tmp_path / "x").exists()


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
    dataset = publish_rows(tmp_path / "d", {"a.bin": "x"}, file=["mine"], key=["k"])
    export(dataset, tmp_path / "x", "huggingface")
    [sample] = load(str(tmp_path / "x"), split="train")
    assert (sample["file"], sample["key"], sample["file_"]["bytes"]) == ("mine", "k", b"x")
