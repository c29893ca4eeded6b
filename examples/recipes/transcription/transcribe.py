"""Speech to text: a row for each segment of a recording, and a file of subtitles."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TypedDict


class Segment(TypedDict):
    """A row of the table. The times are seconds from the start of the recording."""

    output: str
    start: float
    end: float
    text: str


def whisper(
    source: Path,
    out: Path,
    *,
    model: str = "small",
    language: str | None = None,
    device: str = "auto",
    compute_type: str = "default",
) -> list[Segment]:
    """Transcribe speech with faster-whisper. Without `language`, Whisper detects it."""
    segments, _ = load_whisper(model, device, compute_type).transcribe(
        str(source), language=language, vad_filter=True
    )
    return write_subtitles(out, ((part.start, part.end, part.text) for part in segments))


@cache
def load_whisper(model: str, device: str, compute_type: str):
    """Load a model once in each worker process."""
    from faster_whisper import WhisperModel

    return WhisperModel(model, device=device, compute_type=compute_type)


def sphinx(source: Path, out: Path) -> list[Segment]:
    """Transcribe English speech with PocketSphinx, whose package contains its model."""
    import soundfile
    import soxr

    samples, rate = soundfile.read(source, dtype="float32", always_2d=True)
    samples = soxr.resample(samples.mean(axis=1), rate, SPHINX_RATE)
    return write_subtitles(out, recognise((samples * 32767).astype("int16").tobytes()))


SPHINX_RATE = 16_000


def recognise(sound: bytes) -> Iterable[tuple[float, float, str]]:
    """Yield the start, the end and the text of each segment of 16-bit samples."""
    from io import BytesIO

    from pocketsphinx import Segmenter

    decoder = load_sphinx()
    for speech in Segmenter(sample_rate=SPHINX_RATE).segment(BytesIO(sound)):
        decoder.start_utt()
        decoder.process_raw(speech.pcm, full_utt=True)
        decoder.end_utt()
        found = decoder.hyp()
        yield speech.start_time, speech.end_time, found.hypstr if found else ""


@cache
def load_sphinx():
    """Load the model once in each worker process."""
    from pocketsphinx import Decoder

    return Decoder(samprate=SPHINX_RATE, loglevel="FATAL")


def write_subtitles(out: Path, segments: Iterable[tuple[float, float, str]]) -> list[Segment]:
    """Write `subtitles.srt`, and return a row for each segment. Silence gives no file."""
    rows, blocks = [], []
    for start, end, text in segments:
        if text := text.strip():
            times = {"start": round(start, 3), "end": round(end, 3)}
            rows.append({"output": "subtitles.srt", **times, "text": text})
            blocks.append(f"{len(rows)}\n{clock(start)} --> {clock(end)}\n{text}\n")
    if rows:
        (out / "subtitles.srt").write_text("\n".join(blocks), encoding="utf-8")
    return rows


def clock(seconds: float) -> str:
    """Return a time of SubRip.

    >>> clock(3661.5)
    '01:01:01,500'
    """
    minutes, milliseconds = divmod(round(seconds * 1000), 60_000)
    return (
        f"{minutes // 60:02}:{minutes % 60:02}:{milliseconds // 1000:02},{milliseconds % 1000:03}"
    )
