"""Compare two files with the same name: how much they differ, and what a page shows of it."""

import base64
import difflib
import io
from collections.abc import Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from batchmill.core.sizes import readable_size
from batchmill.datasets.publishing.report.gallery import PICTURES, SOUNDS
from batchmill.datasets.publishing.report.pictures import jpeg_url, small_picture

# Longer texts are compared as if the order of their words did not matter, which takes linear time.
_TEXT_CHARACTERS = 20_000
# The diff of a text begins this number of characters before its first difference.
_CONTEXT, _DIFF_CHARACTERS, _DIFF_LINES, _LINE_CHARACTERS = 80, 20_000, 40, 200
# A longer recording is compared, and can be heard, up to here.
_SECONDS = 10
_LARGEST = 1e300
_WINDOW, _LOWEST_DECIBELS = 512, -80.0


class FileComparison(NamedTuple):
    """How two files differ.

    Attributes:
        change: From 0 for about the same content to 1 for nothing in common.
        text: The difference in one line.
        lines: The lines of a text's diff.
        pictures: The first file, the second, and their difference as data URLs.
        sounds: The two recordings as data URLs.
    """

    change: float
    text: str
    lines: Sequence[str] = ()
    pictures: Sequence[str] = ()
    sounds: Sequence[str] = ()


def compare_files(name: str, before: bytes, after: bytes) -> FileComparison:
    """Compare the contents of two files.

    Pictures need Pillow, and recordings soundfile, too. Otherwise, and for damaged files, the
    comparison is that of the sizes.

    Args:
        name: The name of the files. Its suffix names their kind.
        before: The first content.
        after: The second content.
    """
    compare = _COMPARERS.get(PurePosixPath(name).suffix.lower(), _compare_texts)
    # Libraries raise errors of many types for damaged files, and ImportError if they are missing.
    with suppress(Exception):
        return compare(before, after)
    return compare_sizes(len(before), len(after))


def compare_sizes(before: int, after: int) -> FileComparison:
    """Compare two files, of which only the sizes in bytes are known."""
    change = abs(before - after) / max(before, after, 1)
    return FileComparison(change, f"{_sizes(before, after)}, other content")


def compare_values(before: Any, after: Any) -> float:
    """Return how much two values of a row differ, from 0 to 1."""
    if is_number(before) and is_number(after):
        return _dissimilarity(np.array([before]), np.array([after]))
    if isinstance(before, str) and isinstance(after, str):
        return _text_change(before, after)
    return float(before != after)


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number, so that floats can hold a sum of many."""
    is_any = isinstance(value, int | float) and not isinstance(value, bool)
    return is_any and abs(value) < _LARGEST


def _sizes(before: int, after: int) -> str:
    return f"{readable_size(before)} -> {readable_size(after)}"


def _compare_pictures(before: bytes, after: bytes) -> FileComparison:
    from PIL import ImageChops, ImageOps

    old, new = small_picture(before), small_picture(after)
    if old is None or new is None:
        return compare_sizes(len(before), len(after))
    difference = ImageChops.difference(old, new.resize(old.size))
    change = float(np.asarray(difference).mean()) / 255
    text = f"pixels differ by {100 * change:.2g} % on average, {_sizes(len(before), len(after))}"
    pictures = [jpeg_url(picture) for picture in (old, new, ImageOps.autocontrast(difference))]
    return FileComparison(change, text, pictures=pictures)


def _compare_sounds(before: bytes, after: bytes) -> FileComparison:
    from PIL import Image

    old, new = _Recording(before), _Recording(after)
    levels = [old.levels(), new.levels()]
    # The shorter recording is silent at the end, and the one with a lower rate has no high tones.
    shape = np.max([level.shape for level in levels], axis=0)
    levels = [np.pad(level, [(0, more) for more in shape - level.shape]) for level in levels]
    levels.append(abs(levels[1] - levels[0]))
    change = float(levels[2].mean())
    images = [Image.fromarray(np.uint8(255 * level[::-1])) for level in levels]
    return FileComparison(
        change,
        f"levels differ by {100 * change:.2g} % on average, {old.text} -> {new.text}",
        pictures=[jpeg_url(image.resize((240, 96))) for image in images],
        sounds=[old.url(), new.url()],
    )


class _Recording:
    """The beginning of a recording, as one channel."""

    def __init__(self, data: bytes) -> None:
        import soundfile

        with soundfile.SoundFile(io.BytesIO(data)) as file:
            self._rate = file.samplerate
            self.text = f"{file.frames / self._rate:.3g} s at {self._rate:,} Hz"
            channels = file.read(_SECONDS * self._rate, dtype="float32", always_2d=True)
        self._samples = channels.mean(axis=1)

    def levels(self) -> Any:
        """Return the spectrogram, of short-time Fourier transforms with Hann windows.

        One row for each frequency. The values are from 0 for -80 dB to 1 for the loudest sine.
        """
        padded = np.pad(self._samples, (0, max(0, _WINDOW - len(self._samples))))
        windows = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)[:: _WINDOW // 2]
        loudness = abs(np.fft.rfft(windows * np.hanning(_WINDOW))).T / (_WINDOW / 4)
        decibels = 20 * np.log10(np.maximum(loudness, 1e-9))
        return np.clip(1 - decibels / _LOWEST_DECIBELS, 0, 1)

    def url(self) -> str:
        """Return a URL that holds the beginning; empty if its sample rate has no encoder."""
        import soundfile

        file = io.BytesIO()
        with suppress(soundfile.SoundFileError):
            soundfile.write(file, self._samples, self._rate, format="OGG", subtype="VORBIS")
            return f"data:audio/ogg;base64,{base64.b64encode(file.getvalue()).decode()}"
        return ""


def _compare_arrays(before: bytes, after: bytes) -> FileComparison:
    old, new = (np.load(io.BytesIO(data), allow_pickle=False) for data in (before, after))
    if old.shape != new.shape:
        return FileComparison(1.0, f"shape {old.shape} -> {new.shape}")
    return FileComparison(_dissimilarity(old, new), _largest(old, new))


def _compare_tables(before: bytes, after: bytes) -> FileComparison:
    old, new = (pq.read_table(pa.BufferReader(data)) for data in (before, after))
    if old.num_rows != new.num_rows:
        return FileComparison(1.0, f"{old.num_rows:,} rows -> {new.num_rows:,} rows")
    compared = []
    for name in dict.fromkeys([*old.column_names, *new.column_names]):
        if name not in old.column_names or name not in new.column_names:
            compared.append((1.0, f"the column {name} is on one side only"))
        elif not old[name].equals(new[name]):
            compared.append(_compare_columns(name, old[name], new[name]))
    return FileComparison(*max(compared, default=(0.0, "the same rows")))


def _compare_columns(name: str, old: pa.ChunkedArray, new: pa.ChunkedArray) -> tuple[float, str]:
    if all(pa.types.is_integer(t) or pa.types.is_floating(t) for t in (old.type, new.type)):
        values = [column.to_numpy() for column in (old, new)]
        return _dissimilarity(*values), f"{name}: {_largest(*values)}"
    count = sum(a != b for a, b in zip(old.to_pylist(), new.to_pylist(), strict=True))
    return count / max(len(old), 1), f"{name}: differs in {count:,} of {len(old):,} rows"


def _compare_texts(before: bytes, after: bytes) -> FileComparison:
    old, new = before.decode(), after.decode()
    pairs = enumerate(zip(old, new, strict=False))
    same = next((at for at, (was, now) in pairs if was != now), min(len(old), len(new)))
    start = max(0, same - _CONTEXT)
    gone, added = (text[start : start + _DIFF_CHARACTERS].splitlines() for text in (old, new))
    diff = list(difflib.unified_diff(gone, added, lineterm="", n=2))[2:]
    lines = [line[:_LINE_CHARACTERS] for line in diff if not line.startswith("@@")][:_DIFF_LINES]
    return FileComparison(_text_change(old, new), _sizes(len(before), len(after)), lines=lines)


def _text_change(old: str, new: str) -> float:
    """Return 1 - 2M / T: M words of both texts match, and both together have T words.

    This is the ratio of Ratcliff and Obershelp.
    """
    matcher = difflib.SequenceMatcher(None, old.split(), new.split())
    is_short = len(old) + len(new) <= _TEXT_CHARACTERS
    return 1 - (matcher.ratio() if is_short else matcher.quick_ratio())


@np.errstate(all="ignore")
def _dissimilarity(old: Any, new: Any) -> float:
    """Return the dissimilarity of Bray and Curtis, for absolute values: from 0 to 1."""
    old, new = np.asarray(old, float), np.asarray(new, float)
    change = np.nansum(abs(new - old)) / np.nansum(abs(old) + abs(new))
    if np.isfinite(change):
        return float(change)
    # All numbers are 0 or NaN, or one is infinite.
    return float(not np.array_equal(old, new, equal_nan=True))


@np.errstate(all="ignore")
def _largest(old: Any, new: Any) -> str:
    """Return the largest difference of two arrays of numbers in one line."""
    difference = np.nan_to_num(abs(np.asarray(new, float) - np.asarray(old, float)))
    at = np.unravel_index(int(difference.argmax()), difference.shape)
    place = ", ".join(map(str, at))
    return f"largest difference {difference[at]:.4g} at [{place}] ({old[at]:.6g} -> {new[at]:.6g})"


_COMPARERS = {
    **dict.fromkeys(PICTURES, _compare_pictures),
    **dict.fromkeys(SOUNDS, _compare_sounds),
    ".npy": _compare_arrays,
    ".parquet": _compare_tables,
}
