"""The comparison of two files measures how much they differ, and shows what differs."""

import base64
import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from PIL import Image

from batchmill.datasets.publishing.report.file_comparison import (
    compare_files,
    compare_sizes,
    compare_values,
)


def picture(grey, size=(60, 40)):
    file = io.BytesIO()
    Image.new("RGB", size, (grey, grey, grey)).save(file, "PNG")
    return file.getvalue()


def sound(frequency, seconds=1.0, rate=16_000):
    file = io.BytesIO()
    samples = np.sin(2 * np.pi * frequency * np.arange(int(seconds * rate)) / rate)
    soundfile.write(file, samples, rate, format="WAV")
    return file.getvalue()


def array(values):
    file = io.BytesIO()
    np.save(file, np.asarray(values))
    return file.getvalue()


def table(**columns):
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


WORDS = " ".join(f"word{number}" for number in range(100))
# By name of the file: a content, others in the order of their difference from it.
KINDS = {
    "a.png": (picture(100), picture(101), picture(140), picture(255)),
    "a.wav": (sound(440), sound(450), sound(1000, seconds=2)),
    "a.npy": (array([1.0, 2, 3]), array([1.0, 2, 3.1]), array([3.0, 0, 1]), array([1, 2])),
    "a.parquet": (table(a=[1, 2, 3]), table(a=[1, 2, 4]), table(a=[9, 0, 90]), table(a=[1, 2])),
    "a.txt": tuple(
        text.encode() for text in (WORDS, WORDS.replace("word7 ", "7 "), WORDS[:300], "no")
    ),
    "a.bin": (b"\xff\0" * 100, b"\xff\0" * 110, b"\xff\0" * 300),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_larger_difference_is_a_larger_change(name):
    first, *others = KINDS[name]
    assert compare_files(name, first, first).change == 0
    changes = [compare_files(name, first, other).change for other in others]
    assert changes[0] > 0
    assert changes == sorted(changes)
    assert len(set(changes)) == len(changes)
    assert changes[-1] <= 1


def test_each_kind_says_what_differs():
    found = compare_files("a.png", *KINDS["a.png"][:3:2])
    assert found.text.startswith("pixels differ by 16 % on average, ")
    assert [one.startswith("data:image/jpeg;base64,") for one in found.pictures] == [True] * 3
    found = compare_files("a.wav", *KINDS["a.wav"][::2])
    assert found.text.endswith(", 1 s at 16,000 Hz -> 2 s at 16,000 Hz")
    assert len(found.pictures) == 3
    heard = base64.b64decode(found.sounds[1].removeprefix("data:audio/ogg;base64,"))
    assert soundfile.info(io.BytesIO(heard)).duration == 2
    found = compare_files("a.npy", array([[1.0, 2], [np.nan, 4]]), array([[1.0, 5], [np.nan, 4]]))
    assert found.text == "largest difference 3 at [0, 1] (2 -> 5)"
    assert compare_files("a.npy", array([1]), array([1, 2])).text == "shape (1,) -> (2,)"
    found = compare_files("a.parquet", table(a=[1, 2], b=["x", "y"]), table(a=[1, 7], b=["x", "y"]))
    assert found.text == "a: largest difference 5 at [1] (2 -> 7)"
    found = compare_files("a.parquet", table(b=["x", "y"]), table(b=["x", "z"]))
    assert found.text == "b: differs in 1 of 2 rows"
    found = compare_files("a.parquet", table(a=[1]), table(a=[1], b=[1]))
    assert found.text == "the column b is on one side only"


def test_a_diff_begins_before_the_first_difference():
    same = [f"line {number}" for number in range(100_000)]
    old, new = ("\n".join([*same, end, "the end"]).encode() for end in ("old", "new"))
    found = compare_files("a.txt", old, new)
    assert found.lines[-4:] == [" line 99999", "-old", "+new", " the end"]
    long = "x" * 1_000_000
    found = compare_files("a.json", f"{long} old".encode(), f"{long} new".encode())
    assert [one[:3] + one[-3:] for one in found.lines] == ["-xxold", "+xxnew"]


def test_a_diff_shows_what_was_appended_to_a_long_text():
    old = b"line\n" * 6000
    assert list(compare_files("a.txt", old, old + b"appended\n").lines)[-1] == "+appended"


@pytest.mark.parametrize("name", ["a.png", "a.wav", "a.npy", "a.parquet", "a.txt"])
def test_damaged_files_are_compared_by_size(name):
    found = compare_files(name, b"\xff" * 10, b"\xff" * 20)
    assert (
        found == compare_sizes(10, 20) == (0.5, "10 bytes -> 20 bytes, other content", (), (), ())
    )


def test_values_are_compared_by_their_type():
    assert compare_values(1, 1) == compare_values("a b", "a b") == compare_values(None, None) == 0
    assert compare_values(1, 3) == 0.5
    assert compare_values("a b", "a c") == 0.5
    assert compare_values(1, "a") == compare_values(None, 1) == compare_values([1], [2]) == 1
    assert compare_values(1, float("nan")) == compare_values(10**400, 1) == 1
    assert compare_values(True, False) == compare_values(10**400, -(10**400)) == 1


def test_numbers_that_are_not_finite_have_a_change(recwarn):
    infinite, zeros = array([1, np.inf]), array([0.0, np.nan])
    assert compare_files("a.npy", infinite, array([1, 2.0])).change == 1
    assert compare_files("a.npy", infinite, infinite).change == 0
    assert compare_files("a.npy", zeros, zeros).change == 0
    assert not recwarn.list
