"""Steps for sound recordings: WAV, FLAC, OGG and MP3, through soundfile (extra `audio`)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from batchmill.errors import StepError

try:
    import numpy as np
    import soundfile
except ImportError as error:
    raise StepError("Audio steps need soundfile: pip install 'batchmill[audio]'") from error

# What a WAV file can hold sample for sample, and the numbers in which nothing of it is lost.
_LOSSLESS = {
    "PCM_S8": ("PCM_U8", "int16"),
    "PCM_U8": ("PCM_U8", "int16"),
    "PCM_16": ("PCM_16", "int16"),
    "PCM_24": ("PCM_24", "int32"),
    "PCM_32": ("PCM_32", "int32"),
    "FLOAT": ("FLOAT", "float32"),
    "DOUBLE": ("DOUBLE", "float64"),
    "ULAW": ("ULAW", "int16"),
    "ALAW": ("ALAW", "int16"),
}
# Vorbis, Opus, MP3 and the like have no samples of their own until they are decoded.
_DECODED = ("PCM_16", "float32")
_FULL_SCALE = {"int16": 2.0**15, "int32": 2.0**31, "float32": 1.0, "float64": 1.0}


def split(
    source: Path,
    out: Path,
    *,
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 5.0,
    overlap: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0,
    include_last: bool = True,
) -> Iterator[dict[str, Any]]:
    """Cut one recording into WAV clips of `seconds` seconds, which overlap by `overlap` seconds.

    With `include_last`, what is left at the end becomes a shorter clip. The sample format is kept
    (24-bit stays 24-bit; compressed sound becomes 16-bit). One clip is in memory at a time.

    Yields for each clip: `output`, `source` (the recording's file name), `clip` (its number from
    0), `start` and `end` (seconds), `sample_rate` (Hz), `channels`, `peak` (largest absolute
    sample, 1.0 is full scale; compressed sound may exceed it, and is cut off there).

    Raises ValueError for a recording that is empty or shorter than its header says, and
    soundfile.LibsndfileError for one that is no sound file.
    """
    with _ForwardFile(source) as recording:
        _check_length(recording)
        if recording.format == "OGG":
            _check_last_page(source)
        rate = recording.samplerate
        length = max(1, round(seconds * rate))
        hop = length - round(overlap * rate)
        if hop < 1:
            raise ValueError(f"overlap ({overlap} s) must be below seconds ({seconds} s)")
        subtype, dtype = _LOSSLESS.get(recording.subtype, _DECODED)
        for number, (start, clip) in enumerate(_windows(recording, length, hop, dtype)):
            if len(clip) < length and not include_last:
                continue  # Not break: whether the recording is whole, its end tells.
            name = f"{number:04d}.wav"
            soundfile.write(out / name, clip, rate, subtype=subtype, format="WAV")
            yield {
                "output": name,
                "source": source.name,
                "clip": number,
                "start": start / rate,
                "end": (start + len(clip)) / rate,
                "sample_rate": rate,
                "channels": recording.channels,
                "peak": _peak(clip, dtype),
            }


class _ForwardFile(soundfile.SoundFile):
    """A recording that is read from its beginning to its end only.

    soundfile seeks after each block that it reads; there, a decoder of MP3 starts anew, and gives
    silence for some milliseconds.
    """

    def seekable(self) -> bool:
        """Tell soundfile not to seek."""
        return False


def _windows(
    recording: soundfile.SoundFile, length: int, hop: int, dtype: str
) -> Iterator[tuple[int, Any]]:
    """Yield (first frame, frames) of each window; the last may be shorter, none lies in another."""
    # A clip may be asked for that is longer than any recording.
    window = recording.read(min(length, recording.frames), dtype=dtype, always_2d=True)
    start = 0
    total = len(window)
    while len(window):
        yield start, window
        if len(window) < length:
            break
        fresh = recording.read(min(hop, recording.frames), dtype=dtype, always_2d=True)
        total += len(fresh)
        if not len(fresh):
            break
        window = np.concatenate([window[hop:], fresh])
        start += hop
    if total < recording.frames:
        raise ValueError(
            f"it ends after {total} of the {recording.frames} frames that its header announces: "
            "it is truncated or damaged"
        )


def _check_length(recording: soundfile.SoundFile) -> None:
    if recording.frames == 0:
        raise ValueError("it holds no sound (0 frames)")
    # libsndfile mends a wrong length silently, and says so in its log only.
    for line in recording.extra_info.splitlines():
        if line.strip().startswith("data") and "should be" in line:
            announced = line.split(":", 1)[1].split("(")[0].strip()
            if announced.isdigit() and int(announced) not in _UNKNOWN_LENGTHS:
                found = line.split("should be", 1)[1].strip(" )")
                raise ValueError(
                    f"its header announces {announced} bytes of sound, it holds {found}: "
                    "it is truncated or damaged"
                )


def _check_last_page(source: Path) -> None:
    """Raise ValueError for an OGG whose last page is not marked as such (RFC 3533, section 6)."""
    with source.open("rb") as file:
        file.seek(max(0, source.stat().st_size - _LARGEST_PAGE_BYTES))
        tail = file.read()
    page = tail.rfind(b"OggS")
    if page < 0 or len(tail) < page + 6 or not tail[page + 5] & _LAST_PAGE:
        raise ValueError("its last page is not there: it is truncated or damaged")


_LARGEST_PAGE_BYTES = 65_307
_LAST_PAGE = 4

# Programs that write to a pipe cannot know the length, and put one of these.
_UNKNOWN_LENGTHS = {0, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFF000, 0x7FFFFFDB, 0xFFFFFFDB}


def _peak(clip: Any, dtype: str) -> float:
    # The lowest integer has no positive counterpart: its absolute value is taken as a float.
    return float(np.abs(clip.astype(np.float64)).max() / _FULL_SCALE[dtype])
