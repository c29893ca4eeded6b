"""Cut sound recordings into clips, with the labels of their annotations (extra `audio`)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from batchmill.core.user_step.tracked_file import ContentCounts
from batchmill.errors import StepError
from batchmill.steps.annotations import SUFFIXES, read_labels
from batchmill.steps.clips import ClipFilter
from batchmill.steps.recordings import open_recording, to_frames
from batchmill.version import install_command

try:
    import numpy as np
    import soundfile
except ImportError as error:
    raise StepError(f"Audio steps need soundfile: {install_command('audio')}") from error

# Formats that WAV stores without loss: the WAV subtype, and the NumPy type for reading.
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
# Vorbis, Opus, MP3 and other compressed formats have no sample format before decoding.
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
    """Cut one recording into WAV clips. One clip is in memory at a time.

    The sample format is kept: 24-bit stays 24-bit. Compressed sound becomes 16-bit.

    Args:
        source: The recording.
        out: The folder for the clips.
        seconds: The length of a clip.
        overlap: The seconds that a clip shares with the next.
        include_last: True to keep the rest at the end as a shorter clip.
        annotations: A table, or a folder with tables. See `batchmill.steps.annotation_tables`.
        label_column: The table's column of labels.
        min_overlap_seconds: A clip gets a label if more than this overlaps with it.
        only_labelled: True to leave out clips without a label.

    Yields:
        One row per clip: `output`, `source` (the recording's file name), `clip` (its number from
        0), `start` and `end` (seconds), `sample_rate` (Hz), `channels` and `peak` (the
        largest absolute sample). A `peak` of 1.0 is full scale; louder compressed sound is clipped.
        With annotations: `labels` (a sorted list) and `label` (None unless there is exactly one).

    Raises:
        ValueError: The recording is empty, damaged or shorter than its header says.
        soundfile.LibsndfileError: It is not a sound file.
        AnnotationError: A table cannot be used.
    """
    selection = ClipFilter(
        labels=read_labels(source, annotations, label_column=label_column),
        include_last=include_last,
        min_overlap_seconds=min_overlap_seconds,
        only_labelled=only_labelled,
    )
    with open_recording(source) as recording:
        rate = recording.samplerate
        length, hop = to_frames(seconds, overlap, rate)
        subtype, dtype = _LOSSLESS.get(recording.subtype, _DECODED)
        for clip in selection.select(recording, length, hop, dtype):
            name = f"{clip.number:04d}.wav"
            soundfile.write(out / name, clip.samples, rate, subtype=subtype, format="WAV")
            # As floats, because the lowest integer has no positive counterpart.
            peak = float(np.abs(clip.samples.astype(np.float64)).max() / _FULL_SCALE[dtype])
            yield clip.row(name, source, sample_rate=rate, channels=recording.channels, peak=peak)
