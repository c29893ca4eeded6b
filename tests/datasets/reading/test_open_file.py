"""Test that files are opened by suffix, and that no code in them is executed."""

import io
import pickle
import sys

import numpy as np
import pyarrow as pa
import pytest
import soundfile
import torch
from harness.published import publish_rows
from PIL import Image
from readers import Trap
from torch.utils.data import DataLoader

from batchmill import OptionError, StoreError, open_dataset
from batchmill.datasets.reading.open_file import choose_load, one_of_each_suffix


def written(save, *arguments, **options):
    """Return the bytes that a library's `save` writes."""
    file = io.BytesIO()
    save(file, *arguments, **options)
    return file.getvalue()


def torch_saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def opened(folder, name, content, **options):
    return open_dataset(publish_rows(folder / "d", {name: content}), **options)[0].data


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", "Größe\n", "Größe\n"),
        ("a.md", "# One", "# One"),
        ("a.json", '{"a": [1, 2]}', {"a": [1, 2]}),
        ("a.TXT", "upper", "upper"),
    ],
)
def test_text(tmp_path, name, content, expected):
    assert opened(tmp_path, name, content) == expected


def test_tensors(tmp_path):
    value = {"x": torch.arange(6).reshape(2, 3), "n": 2}
    found = opened(tmp_path, "a.pt", torch_saved(value))
    assert torch.equal(found["x"], value["x"])
    assert found["n"] == 2


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<i8", ">i2", "bool", "uint8"])
def test_arrays(tmp_path, dtype):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    found = opened(tmp_path, "a.npy", written(np.save, array.T))
    assert isinstance(found, torch.Tensor)
    assert np.array_equal(found.numpy(), array.T)
    assert found.numpy().dtype == array.dtype.newbyteorder("=")


def test_several_arrays(tmp_path):
    found = opened(tmp_path, "a.npz", written(np.savez, x=np.ones(2), y=np.zeros((1, 2), "i4")))
    assert {name: value.shape for name, value in found.items()} == {"x": (2,), "y": (1, 2)}
    assert found["y"].dtype == torch.int32


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("form", ["wav", "flac", "ogg", "mp3"])
def test_sound_is_channels_by_frames(tmp_path, form, channels):
    wave = np.sin(np.arange(8000 * channels) * 0.05).reshape(-1, channels).astype("float32") / 2
    content = written(soundfile.write, wave, 8000, format=form.upper())
    found = opened(tmp_path, f"a.{form}", content)
    assert (found.dtype, found.shape[0], found.is_contiguous()) == (torch.float32, channels, True)
    assert found.shape[1] >= 8000
    if form in ("wav", "flac"):
        assert np.abs(found.numpy().T - wave).max() < 1e-4


@pytest.mark.parametrize("form", ["png", "jpg", "jpeg", "webp", "tif", "bmp"])
def test_images_are_channels_by_rows_by_columns(tmp_path, form):
    pixels = np.zeros((8, 16, 3), "uint8")
    pixels[:, 8:, 0] = 255
    image = Image.fromarray(pixels)
    content = written(image.save, format={"jpg": "jpeg", "tif": "tiff"}.get(form, form))
    found = opened(tmp_path, f"a.{form}", content)
    assert (found.dtype, tuple(found.shape), found.is_contiguous()) == (
        torch.uint8, (3, 8, 16), True,
    )  # fmt: skip
    assert found[0, :, 12].min() > 200
    assert found[:, :, 2].max() < 50


@pytest.mark.parametrize(
    ("mode", "channels"), [("L", 1), ("1", 1), ("LA", 1), ("P", 3), ("RGBA", 3), ("CMYK", 3)]
)
def test_images_of_other_modes_are_gray_or_rgb(tmp_path, mode, channels):
    image = Image.new("RGB", (4, 2), "white").convert(mode)
    form = "tiff" if mode == "CMYK" else "png"
    found = opened(tmp_path, f"a.{form}", written(image.save, format=form))
    assert tuple(found.shape) == (channels, 2, 4)
    assert found.min() > 250


def test_an_image_with_more_than_8_bits_is_rejected(tmp_path):
    image = Image.fromarray(np.full((2, 2), 60_000, "uint16"))
    with pytest.raises(StoreError, match=r"a\.png: cannot be opened.*more than 8 bits: set load="):
        opened(tmp_path, "a.png", written(image.save, format="png"))


@pytest.mark.parametrize("name", ["a.pt", "a.npy", "a.npz"])
def test_nothing_is_unpickled(tmp_path, name):
    trap = Trap(tmp_path / "sprung")
    array = np.array([trap], dtype=object)
    contents = {
        "a.pt": lambda: torch_saved(trap),
        "a.npy": lambda: written(np.save, array, allow_pickle=True),
        "a.npz": lambda: written(np.savez, array, allow_pickle=True),
    }
    with pytest.raises(StoreError, match=r"a\.\w+: cannot be opened"):
        opened(tmp_path, name, contents[name]())
    assert not (tmp_path / "sprung").exists()
    pickle.loads(pickle.dumps(trap))  # Unpickling triggers the trap.
    assert (tmp_path / "sprung").exists()


@pytest.mark.parametrize("name", ["a.pt", "a.npy", "a.npz", "a.wav", "a.png", "a.json"])
def test_a_damaged_file_is_reported_with_its_name(tmp_path, name):
    with pytest.raises(StoreError, match=rf"files/{name}: cannot be opened .*batchmill verify"):
        opened(tmp_path, name, b"no such thing")


def test_a_worker_reports_a_damaged_file_with_its_name(tmp_path):
    dataset = open_dataset(publish_rows(tmp_path / "d", {"a.txt": "x", "b.json": "{"}))
    with pytest.raises(RuntimeError, match=r"files/b\.json: cannot be opened"):
        list(DataLoader(dataset, num_workers=1))


def test_a_missing_file_is_reported_with_its_name(tmp_path):
    dataset = open_dataset(publish_rows(tmp_path / "d", {"a.txt": "x"}))
    (tmp_path / "d" / "files" / "a.txt").unlink()
    with pytest.raises(StoreError, match=r"files/a\.txt: is missing"):
        dataset[0]


def test_an_unknown_suffix_is_reported_when_the_dataset_is_opened(tmp_path):
    folder = publish_rows(tmp_path / "d", {"a.txt": "x", "b.txt": "y", "c.dat": "z", "d": "w"})
    with pytest.raises(OptionError, match=r"cannot open 'files/c\.dat', because \.dat is .*load="):
        open_dataset(folder)
    assert open_dataset(folder, load="bytes")[2].data == b"z"
    assert open_dataset(folder, load=lambda path: path.suffix)[2].data == ".dat"
    with pytest.raises(OptionError, match=r"is not a kind of file\. Give tensor, array"):
        open_dataset(folder, load="sound")


def test_errors_of_a_load_function_are_not_changed(tmp_path):
    folder = publish_rows(tmp_path / "d", {"a.txt": "x"})
    with pytest.raises(ZeroDivisionError) as caught:
        open_dataset(folder, load=lambda path: 1 / 0)[0]
    assert "files/a.txt" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("name", "module", "extra"), [("a.wav", "soundfile", "audio"), ("a.png", "PIL.Image", "images")]
)
def test_a_missing_library_is_reported_when_the_dataset_is_opened(
    tmp_path, monkeypatch, name, module, extra
):
    folder = publish_rows(tmp_path / "d", {name: "x"})
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(OptionError, match=rf"pip install 'batchmill\[{extra}\] @ git"):
        open_dataset(folder)


def test_the_suffix_of_a_url_is_before_its_query():
    names = ["https://h/a.txt?v=1", "https://h/b.txt?v=2.5", "https://h/c.wav#x"]
    assert [*one_of_each_suffix(pa.array(names))] == ["https://h/a.txt", "https://h/c.wav"]
    assert choose_load(None, names[:2], "d") is choose_load(None, ["a.txt"], "d")
