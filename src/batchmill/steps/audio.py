"""Cut sound recordings into clips, with the labels of what is heard in them (extra `audio`)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from batchmill.errors import StepError
from batchmill.step.tracked_file import ContentCounts
from batchmill.steps.annotations import SUFFIXES, annotations_of, label_columns
from batchmill.steps.recordings import frames_of, open_recording, windows

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
    annotations: Annotated[str | None, ContentCounts(*SUFFIXES)] = None,
    label_column: str | None = None,
    min_overlap_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0,
    only_labelled: bool = False,
) -> Iterator[dict[str, Any]]:
    """Cut one recording into WAV clips of `seconds` seconds, which overlap by `overlap` seconds.

    With `include_last`, what is left at the end becomes a shorter clip. The sample format is kept
    (24-bit stays 24-bit; compressed sound becomes 16-bit). One clip is in memory at a time.

    `annotations` is a table, or a folder with one for each recording; see
    `batchmill.steps.annotations`. A clip has the labels of which more than `min_overlap_seconds`
    lie in it; with `only_labelled`, clips without any are left out.

    Yields for each clip: `output`, `source` (the recording's file name), `clip` (its number from
    0), `start` and `end` (seconds), `sample_rate` (Hz), `channels`, `peak` (largest absolute
    sample, 1.0 is full scale; compressed sound may exceed it, and is cut off there); with
    annotations, `labels` (a sorted list) and `label` (the only one; None unless there is one).

    Raises ValueError for a recording that is empty, damaged or shorter than its header says,
    soundfile.LibsndfileError for one that is no sound file, AnnotationError for a bad table.
    """
    track = annotations_of(source, annotations, label_column=label_column)
    with open_recording(source) as recording:
        rate = recording.samplerate
        length, hop = frames_of(seconds, overlap, rate)
        subtype, dtype = _LOSSLESS.get(recording.subtype, _DECODED)
        for number, (first, clip) in enumerate(windows(recording, length, hop, dtype)):
            start, end = first / rate, (first + len(clip)) / rate
            labels = track.within(start, end, min_overlap_seconds) if track else []
            if (len(clip) < length and not include_last) or (only_labelled and not labels):
                continue  # Not break: whether the recording is whole, its end tells.
            name = f"{number:04d}.wav"
            soundfile.write(out / name, clip, rate, subtype=subtype, format="WAV")
            row = {
                "output": name,
                "source": source.name,
                "clip": number,
                "start": start,
                "end": end,
                "sample_rate": rate,
                "channels": recording.channels,
                "peak": _peak(clip, dtype),
            }
            yield row | (label_columns(labels) if track else {})


def _peak(clip: Any, dtype: str) -> float:
    # The lowest integer has no positive counterpart: its absolute value is taken as a float.
    return float(np.abs(clip.astype(np.float64)).max() / _FULL_SCALE[dtype])
