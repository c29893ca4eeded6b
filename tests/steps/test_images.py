"""Test resizing, tiling and converting pictures of all kinds, and the errors for bad files."""

import io
import struct
import subprocess
import sys
import tempfile
import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from harness.jobs import run_job
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms, PngImagePlugin

from batchmill import StepError
from batchmill.core.user_step.load import load_step
from batchmill.steps.images import resize, tile, to_tensor

ORIENTATION = 274
STEPS = [resize, tile, to_tensor]


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def gradient(width=60, height=40):
    across, down = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return np.stack([across, down, 255 - across], axis=2).astype(np.uint8)


def saved(path, image, **options):
    image = image if isinstance(image, Image.Image) else Image.fromarray(image)
    image.save(path, **options)
    return path


def pixels(path):
    with Image.open(path) as file:
        return np.asarray(file).astype(int)


def png(width, height, depth, colour, data, spoilt=None):
    def part(name, content):
        checksum = zlib.crc32(name + content) ^ (name == spoilt)
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = [part(b"IHDR", header), part(b"IDAT", zlib.compress(data, 9)), part(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def written(form, **options):
    file = io.BytesIO()
    Image.fromarray(gradient()).save(file, form, **options)
    return file.getvalue()


# Sizes and shapes


@pytest.mark.parametrize(
    ("fit", "size"),
    [("contain", (30, 20)), ("cover", (30, 30)), ("stretch", (30, 30)), ("pad", (30, 30))],
)
def test_fit(tmp_path, out, fit, size):
    source = saved(tmp_path / "a.png", gradient())
    row = resize(source, out, width=30, height=30, fit=fit, background="#123456")
    assert row == {
        "output": "picture.png",
        "source": "a.png",
        "width": size[0],
        "height": size[1],
        "mode": "RGB",
        "source_width": 60,
        "source_height": 40,
        "source_mode": "RGB",
        "source_format": "PNG",
        "frames": 1,
    }
    result = pixels(out / "picture.png")
    assert result.shape == (size[1], size[0], 3)
    # Red grows from left to right. The result has the whole gradient or its middle.
    middle = result[15] if fit == "pad" else result[10]
    if fit == "cover":
        assert (abs(middle[[0, -1], 0] - np.array([45, 210])) < 6).all()
    else:
        assert (abs(middle[[0, -1], 0] - np.array([0, 255])) < 6).all()
    padded = (result[[0, 4, -1]] == (0x12, 0x34, 0x56)).all()
    assert padded == (fit == "pad")


def test_a_small_picture_is_enlarged_and_a_thin_one_keeps_a_pixel(tmp_path, out):
    source = saved(tmp_path / "a.png", gradient(600, 1))
    assert resize(source, out, width=60, height=60)["height"] == 1
    source = saved(tmp_path / "b.png", gradient(3, 2))
    assert resize(source, out, width=60, height=60)["height"] == 40


@pytest.mark.parametrize("fit", ["contain", "cover", "stretch", "pad"])
@settings(max_examples=25, deadline=None)
@given(sides=st.tuples(*[st.integers(1, 40)] * 4))
def test_every_shape_can_be_resized_to_every_other(fit, sides):
    width, height, source_width, source_height = sides
    with tempfile.TemporaryDirectory() as folder:
        source = saved(Path(folder, "a.png"), gradient(source_width, source_height))
        row = resize(source, Path(folder), width=width, height=height, fit=fit)
        if fit == "contain":
            assert row["width"] == width or row["height"] == height
            assert row["width"] <= width
            assert row["height"] <= height
        else:
            assert (row["width"], row["height"]) == (width, height)


@pytest.mark.parametrize("form", ["png", "jpeg", "webp"])
def test_the_bytes_are_the_same_every_time(tmp_path, out, form):
    source = saved(tmp_path / "a.jpg", gradient(), comment="taken today", dpi=(72, 72))
    contents = set()
    for _ in range(2):
        row = resize(source, out, format=form)
        contents.add((out / row["output"]).read_bytes())
    assert len(contents) == 1
    assert b"taken today" not in contents.pop()


@pytest.mark.parametrize(
    ("name", "format", "name_written"),
    [
        ("a.jpg", "same", "picture.jpg"),
        ("a.webp", "same", "picture.webp"),
        ("a.png", "same", "picture.png"),
        ("a.gif", "same", "picture.png"),
        ("a.tiff", "same", "picture.png"),
        ("a.bmp", "jpeg", "picture.jpg"),
        ("a.jpg", "webp", "picture.webp"),
    ],
)
def test_formats(tmp_path, out, name, format, name_written):  # noqa: A002
    row = resize(saved(tmp_path / name, gradient()), out, format=format)
    assert row["output"] == name_written
    with Image.open(out / name_written) as file:
        assert Path(name_written).suffix in (".jpg", f".{file.format.lower()}")


def test_quality_sets_the_quality_of_the_file(tmp_path, out):
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3)).astype(np.uint8)
    source = saved(tmp_path / "a.png", noise)
    sizes = {}
    for quality in (10, 95):
        row = resize(source, out, format="jpeg", quality=quality)
        sizes[quality] = (out / row["output"]).stat().st_size
    assert sizes[10] < sizes[95] / 2


# Kinds of pixels


def in_mode(mode):
    grey = Image.fromarray(gradient()[:, :, 0])
    if mode in ("I", "F", "I;16", "I;16B"):
        samples = np.asarray(grey).astype({"I": ">i4", "F": ">f4"}.get(mode, ">u2"))
        if mode == "I;16":
            return Image.fromarray(samples.astype(np.uint16) * 257)
        return Image.fromarray(samples.astype(samples.dtype.newbyteorder("=")) * 200)
    if mode == "LAB":
        profiles = [ImageCms.createProfile(name) for name in ("sRGB", "LAB")]
        return ImageCms.profileToProfile(Image.fromarray(gradient()), *profiles, outputMode="LAB")
    if mode in ("1", "L"):
        return grey.convert(mode)
    if mode == "LA":
        return Image.merge("LA", [grey, grey])
    return Image.fromarray(gradient()).convert(mode)


@pytest.mark.parametrize(
    ("mode", "form", "becomes"),
    [
        ("1", "png", "L"),
        ("L", "png", "L"),
        ("LA", "png", "LA"),
        ("P", "png", "RGB"),
        ("RGB", "png", "RGB"),
        ("RGBA", "png", "RGBA"),
        ("I;16", "png", "I;16"),
        ("CMYK", "jpg", "RGB"),
        ("CMYK", "tiff", "RGB"),
        ("YCbCr", "tiff", "RGB"),
        ("LAB", "tiff", "RGB"),
        ("I;16", "tiff", "I;16"),
        ("I", "tiff", "I;16"),
    ],
)
def test_every_mode_is_read(tmp_path, out, mode, form, becomes):
    source = saved(tmp_path / f"a.{form}", in_mode(mode))
    assert resize(source, out, width=30, height=20)["mode"] == becomes
    for format in ("jpeg", "webp"):  # noqa: A001
        row = resize(source, out, width=30, height=20, format=format)
        held = {"jpeg": ("L", "RGB"), "webp": ("RGB", "RGBA")}[format]
        assert row["mode"] in held
        with Image.open(out / row["output"]) as file:
            assert row["mode"].startswith(file.mode)  # WebP drops an opaque alpha channel.
    for channels in (1, 3, 4):
        row = to_tensor(source, out, width=30, height=20, channels=channels)
        array = np.load(out / row["output"])
        assert (array.shape, array.dtype) == ((channels, 20, 30), np.uint8)
    # In every mode, red or grey grows from left to right, and blue shrinks.
    red, _, blue, _ = array.mean(axis=1)
    assert red[-5:].mean() > red[:5].mean() + 50
    assert (blue[-5:].mean() < blue[:5].mean()) == (becomes in ("RGB", "RGBA"))


def test_16_bits_keep_their_range(tmp_path, out):
    samples = (np.arange(64 * 64).reshape(64, 64) * 16).astype(np.uint16)
    source = saved(tmp_path / "a.png", samples)
    row = resize(source, out, width=32, height=32)
    result = pixels(out / row["output"])
    means = samples.reshape(32, 2, 32, 2).mean(axis=(1, 3))
    assert abs(result - means)[2:-2, 2:-2].max() < 40
    (row,) = tile(source, out)
    assert (pixels(out / row["output"]) == samples).all()
    row = tile(source, out, format="jpeg", quality=100)[0]
    assert abs(pixels(out / row["output"]) - samples / 257).max() < 4
    row = to_tensor(source, out, width=64, height=64, channels=1, dtype="float32")
    assert np.allclose(np.load(out / row["output"])[0], samples / 65535, atol=1e-6)
    row = to_tensor(source, out, width=64, height=64, channels=3)
    assert abs(np.load(out / row["output"]) - samples / 257).max() <= 0.5


def test_a_sharp_edge_of_16_bits_does_not_wrap_around(tmp_path, out):
    samples = np.zeros((40, 40), np.uint16)
    samples[:, 20:] = 65535
    row = resize(saved(tmp_path / "a.png", samples), out, width=100, height=100)
    result = pixels(out / row["output"])
    assert result[:, :49].max() < 10_000
    assert result[:, 51:].min() > 55_000
    assert result.max() == 65535


def test_samples_beyond_16_bits_are_rejected(tmp_path, out):
    for number in (-1, 65_536):
        source = saved(tmp_path / "a.tiff", np.full((4, 4), number, np.int32))
        with pytest.raises(ValueError, match="would be cut off"):
            resize(source, out)


def test_floating_point_samples_are_kept_or_rejected(tmp_path, out):
    samples = np.linspace(-1, 7, 16, dtype=np.float32).reshape(4, 4)
    source = saved(tmp_path / "a.tiff", samples)
    row = to_tensor(source, out, width=4, height=4, dtype="float32")
    assert (np.load(out / row["output"]) == samples).all()
    row = to_tensor(source, out, width=4, height=4, dtype="float32", channels=4)
    assert (np.load(out / row["output"])[3] == 1).all()
    for step, options in [(resize, {}), (tile, {}), (to_tensor, {"dtype": "uint8"})]:
        with pytest.raises(ValueError, match="floating-point"):
            step(source, out, **options)
    samples[1, 1] = np.nan
    with pytest.raises(ValueError, match="not finite numbers"):
        to_tensor(saved(source, samples), out, dtype="float32")


def test_transparency_is_kept_if_the_format_has_it(tmp_path, out):
    palette = Image.fromarray(gradient()).quantize(16)
    palette.info["transparency"] = bytes([0] * 8 + [255] * 8)
    source = saved(tmp_path / "a.png", palette)
    alpha = pixels_of_alpha(source)
    assert {0, 255} == set(np.unique(alpha))
    (row,) = tile(source, out)
    assert row["mode"] == "RGBA"
    assert (pixels(out / row["output"])[:, :, 3] == alpha).all()
    row = to_tensor(source, out, width=60, height=40, background="#0000ff")
    array = np.load(out / row["output"])
    assert (array[:, alpha == 0] == [[0], [0], [255]]).all()
    row = resize(source, out, width=60, height=40, format="jpeg", background="#000000", quality=100)
    assert row["mode"] == "RGB"
    assert pixels(out / row["output"])[alpha == 0].mean() < 20


def pixels_of_alpha(path):
    with Image.open(path) as file:
        return np.asarray(file.convert("RGBA"))[:, :, 3]


def test_a_transparent_colour_counts_as_transparent(tmp_path, out):
    for mode, colour, becomes in [("L", 7, "LA"), ("RGB", (7, 7, 7), "RGBA"), ("1", 0, "LA")]:
        image = Image.new(mode, (4, 4), colour)
        (row,) = tile(saved(tmp_path / "a.png", image, transparency=colour), out)
        assert row["mode"] == becomes
        assert (pixels(out / row["output"])[:, :, -1] == 0).all()


def test_transparent_pixels_do_not_affect_their_neighbours(tmp_path, out):
    samples = np.zeros((40, 40, 4), np.uint8)
    samples[:, :20] = (255, 0, 0, 255)
    samples[:, 20:] = (0, 255, 0, 0)  # Green, but fully transparent.
    row = resize(saved(tmp_path / "a.png", samples), out, width=13, height=13)
    result = pixels(out / row["output"])
    assert result[:, :, 1].max() == 0 or result[result[:, :, 3] > 0][:, 1].max() <= 2


def test_a_colour_profile_is_kept_if_it_fits_the_mode(tmp_path, out):
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    source = saved(tmp_path / "a.jpg", gradient(), icc_profile=profile)
    for format in ("png", "jpeg", "webp"):  # noqa: A001
        row = resize(source, out, format=format)
        with Image.open(out / row["output"]) as file:
            assert file.info["icc_profile"] == profile
    # A CMYK profile must not be attached to the RGB result.
    cmyk = profile[:16] + b"CMYK" + profile[20:]
    source = saved(tmp_path / "b.jpg", in_mode("CMYK"), icc_profile=cmyk)
    row = resize(source, out)
    with Image.open(out / row["output"]) as file:
        assert "icc_profile" not in file.info


# Orientation, frames


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.tiff"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_upright(tmp_path, out, name, orientation):
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    source = saved(tmp_path / name, gradient(), exif=exif)
    row = tile(source, out)[0]
    shape = (60, 40) if orientation <= 4 else (40, 60)
    assert (row["source_width"], row["source_height"]) == (row["width"], row["height"]) == shape
    turned = {
        1: lambda a: a,
        2: np.fliplr,
        3: lambda a: np.rot90(a, 2),
        4: np.flipud,
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: np.rot90(a, -1),
        7: lambda a: np.rot90(a, 2).transpose(1, 0, 2),
        8: np.rot90,
    }[orientation](gradient())
    assert abs(pixels(out / row["output"]) - turned).mean() < 8
    with Image.open(out / row["output"]) as file:
        assert not file.getexif()


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp"])
def test_unreadable_exif_data_is_ignored(tmp_path, out, name):
    exif = Image.Exif()
    exif[ORIENTATION] = 9
    assert tile(saved(tmp_path / name, gradient(), exif=exif), out)[0]["width"] == 60
    source = saved(tmp_path / name, gradient(), exif=b"Exif\0\0garbage")
    assert tile(source, out)[0]["width"] == 60


@pytest.mark.parametrize("name", ["a.gif", "a.webp", "a.tiff", "a.png"])
def test_the_first_frame_is_used_and_frames_are_counted(tmp_path, out, name):
    frames = [Image.new("RGB", (8, 6), colour) for colour in ("red", "lime", "blue")]
    source = saved(
        tmp_path / name, frames[0], save_all=True, append_images=frames[1:], lossless=True
    )
    row = tile(source, out)[0]
    assert row["frames"] == 3
    assert (pixels(out / row["output"])[:, :, :3] == (255, 0, 0)).all()


# Tiles


@pytest.mark.parametrize(
    ("size", "overlap", "include_last", "corners"),
    [
        (20, 0, True, [(x, y) for y in (0, 20) for x in (0, 20, 40)]),
        (25, 0, True, [(x, y) for y in (0, 25) for x in (0, 25, 50)]),
        (25, 0, False, [(0, 0), (25, 0)]),
        (25, 10, True, [(x, y) for y in (0, 15) for x in (0, 15, 30, 45)]),
        (40, 20, True, [(0, 0), (20, 0)]),
        (60, 0, False, []),
        (99, 0, True, [(0, 0)]),
    ],
)
def test_tiles(tmp_path, out, size, overlap, include_last, corners):
    source = saved(tmp_path / "a.png", gradient())
    rows = tile(source, out, size=size, overlap=overlap, include_last=include_last)
    assert [(row["x"], row["y"]) for row in rows] == corners
    assert [row["tile"] for row in rows] == list(range(len(rows)))
    assert len({row["output"] for row in rows}) == len(rows)
    for row in rows:
        x, y = row["x"], row["y"]
        part = gradient()[y : y + size, x : x + size]
        assert (pixels(out / row["output"]) == part).all()
        assert (row["height"], row["width"]) == part.shape[:2]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_tiles_cover_the_picture_and_no_tile_lies_in_another(data):
    width, height = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 30))
    size = data.draw(st.integers(4, 40))
    overlap = data.draw(st.integers(0, size // 2))
    with tempfile.TemporaryDirectory() as folder:
        samples = gradient(width, height)
        rows = tile(saved(Path(folder, "a.png"), samples), Path(folder), size=size, overlap=overlap)
        pasted = np.full_like(samples, 99)
        seen = np.zeros((height, width), bool)
        for row in rows:
            part = np.s_[row["y"] : row["y"] + row["height"], row["x"] : row["x"] + row["width"]]
            pasted[part] = pixels(Path(folder, row["output"]))
            assert not seen[part].all()
            seen[part] = True
        assert (pasted == samples).all()
        assert seen.all()
        for before, after in pairwise(rows):
            if after["y"] == before["y"]:
                assert before["x"] + before["width"] - after["x"] == overlap


def test_an_overlap_of_the_whole_tile_is_rejected(tmp_path, out):
    with pytest.raises(ValueError, match="overlap"):
        tile(saved(tmp_path / "a.png", gradient()), out, size=5, overlap=5)


# Arrays


def test_an_array_has_channels_height_and_width(tmp_path, out):
    source = saved(tmp_path / "a.png", gradient())
    row = to_tensor(source, out, width=60, height=40)
    assert row == {
        "output": "tensor.npy",
        "source": "a.png",
        "channels": 3,
        "height": 40,
        "width": 60,
        "dtype": "uint8",
        "source_width": 60,
        "source_height": 40,
        "source_mode": "RGB",
        "source_format": "PNG",
        "frames": 1,
    }
    array = np.load(out / "tensor.npy")
    assert (array == gradient().transpose(2, 0, 1)).all()
    assert array.flags.c_contiguous
    to_tensor(source, out, width=60, height=40, dtype="float32")
    scaled = np.load(out / "tensor.npy")
    assert scaled.dtype == np.float32
    assert np.allclose(scaled, array / 255)


# Bad pictures


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it is empty"),
        (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "begins with b'<svg xmlns="),
        (b"<!DOCTYPE html><html>", "begins with b'<!DOCTYPE html>"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", "is not a picture"),
        (b"GIF89a\x01\x00\x01\x00\x00\x00\x00;", "header is damaged"),
        (png(0, 2, 8, 0, b"\0\0"), "header is damaged"),
        (b"P5 0 5 255\n", "header is damaged"),
        (png(2, 2, 8, 0, b"\0ab\0cd", spoilt=b"IHDR"), "header is damaged"),
        (png(2, 2, 8, 0, b"\0ab\0cd", spoilt=b"IDAT"), "it is damaged: .*checksum in b'IDAT'"),
        (png(50_000, 50_000, 1, 0, bytes(6251 * 5000)), "too large: .*2500000000 pixels"),
    ],
)
def test_a_file_that_is_not_a_picture_is_rejected(tmp_path, out, step, content, says):
    source = tmp_path / "a.png"
    source.write_bytes(content)
    with pytest.raises(ValueError, match=says):
        step(source, out)
    assert not list(out.iterdir())


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "JPEG2000", "AVIF"])
@pytest.mark.parametrize("left", [0.3, 0.6, 0.95])
def test_a_truncated_picture_is_rejected(tmp_path, out, form, left):
    content = written(form)
    source = tmp_path / "a"
    source.write_bytes(content)
    assert resize(source, out)["source_format"] == form
    source.write_bytes(content[: int(len(content) * left)])
    with pytest.raises((ValueError, OSError)):
        resize(source, out)


def test_a_truncated_progressive_jpeg_is_rejected(tmp_path, out):
    source = tmp_path / "a.jpg"
    source.write_bytes(written("JPEG", progressive=True)[:-300])
    with pytest.raises(OSError, match="truncated"):
        resize(source, out)


def test_the_user_sets_the_limit_of_pixels(tmp_path, out, monkeypatch):
    source = saved(tmp_path / "a.png", gradient())
    with pytest.raises(ValueError, match=r"2400 pixels.*set max_pixels \(now 2,399\)"):
        resize(source, out, max_pixels=2399)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    rows = tile(source, out, size=50, max_pixels=2400)
    assert len(rows) == 2
    assert Image.MAX_IMAGE_PIXELS == 100


def test_a_text_bomb_is_rejected(tmp_path, out):
    info = PngImagePlugin.PngInfo()
    info.add_text("comment", "x" * 80_000_000, zip=True)
    source = saved(tmp_path / "a.png", gradient(2, 2), pnginfo=info)
    assert source.stat().st_size < 100_000
    with pytest.raises(ValueError, match="too large"):
        resize(source, out)


def test_odd_tiff_tags_are_ignored(tmp_path, out):
    content = bytearray(written("TIFF"))
    place = struct.unpack("<I", content[4:8])[0]
    count = struct.unpack("<H", content[place : place + 2])[0]
    entries = [content[place + 2 + 12 * number :][:12] for number in range(count)] + [
        struct.pack("<HHII", 65_000, 99, 0xFFFFFFF, 0xFFFFFF),
        struct.pack("<HHII", 1, 2, 9, 8),
    ]
    table = struct.pack("<H", len(entries)) + b"".join(entries) + bytes(4)
    content[4:8] = struct.pack("<I", len(content))
    source = tmp_path / "a.tiff"
    source.write_bytes(content + table)
    row = tile(source, out)[0]
    assert (pixels(out / row["output"]) == gradient()).all()


def test_a_bad_picture_fails_alone(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    saved(folder / "a.jpg", gradient())
    (folder / "b.png").write_text("<svg/>")
    saved(folder / "c.webp", gradient())
    summary = run_job(folder, "batchmill.steps.images:tile", tmp_path / "out", size=40)
    assert summary.outcomes == {"ok": 2, "failed": 1}
    assert summary.failures[0][0] == "b.png"
    assert "begins with b'<svg/>'" in summary.failures[0][1]
    table = pd.read_parquet(tmp_path / "out" / "metadata.parquet")
    assert list(table["input"]) == ["a.jpg"] * 2 + ["c.webp"] * 2
    assert all((tmp_path / "out" / output).is_file() for output in table["output"])


def test_16_bits_per_colour_become_the_upper_8(tmp_path, out):
    lines = b"\0" + struct.pack(">6H", 0x1234, 0xFF01, 0x00FF, 0xABCD, 0x8000, 0x7FFF)
    source = tmp_path / "a.png"
    source.write_bytes(png(2, 1, 16, 2, lines))
    (row,) = tile(source, out)
    assert pixels(out / row["output"]).tolist() == [[[0x12, 0xFF, 0], [0xAB, 0x80, 0x7F]]]


# Parameters


@pytest.mark.parametrize(
    ("step", "params", "says"),
    [
        ("resize", {"width": 0}, "'width' is 0"),
        ("resize", {"height": 16_384}, "'height' is 16384"),
        ("resize", {"fit": "crop"}, "'fit' is 'crop'"),
        ("resize", {"format": "gif"}, "'format' is 'gif'"),
        ("resize", {"quality": 101}, "'quality' is 101"),
        ("resize", {"background": "whitish"}, "unknown color specifier"),
        ("resize", {"background": "#ffffff80"}, "name an opaque colour"),
        ("resize", {"max_pixels": 0}, "'max_pixels' is 0"),
        ("tile", {"overlap": -1}, "'overlap' is -1"),
        ("to_tensor", {"channels": 2}, "'channels' is 2"),
        ("to_tensor", {"dtype": "float64"}, "'dtype' is 'float64'"),
    ],
)
def test_parameters_are_checked_before_the_run(step, params, says):
    with pytest.raises(StepError) as caught:
        load_step(f"batchmill.steps.images:{step}", params)
    assert says in str(caught.value)


def test_the_code_includes_all_modules_of_the_step():
    code = load_step("batchmill.steps.images:tile").description["code"]
    modules = sorted({key.partition(":")[0] for key in code})
    assert modules == [f"batchmill.steps.{name}" for name in ("images", "pixels", "windows")]


def test_without_pillow_the_error_names_the_extra():
    script = (
        "import sys; sys.modules['PIL'] = None\n"
        "from batchmill.core.user_step.load import load_step\n"
        "load_step('batchmill.steps.images:resize')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "Image steps need Pillow: pip install 'batchmill[images] @ git" in done.stderr
