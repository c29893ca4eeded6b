"""Turn sound recordings into log-mel spectrograms, as `.npy` files (extra `audio`)."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from batchmill.core.user_step.tracked_file import ContentCounts
from batchmill.errors import StepError
from batchmill.steps.annotations import SUFFIXES, read_labels
from batchmill.steps.clips import Clip, ClipFilter
from batchmill.steps.recordings import Recording, open_recording, to_frames
from batchmill.version import install_command

try:
    import numpy as np
    import soxr
except ImportError as error:
    raise StepError(f"Spectrograms need numpy and soxr: {install_command('audio')}") from error

# The lowest power, -100 dB. The logarithm of silence would be infinite.
_FLOOR = 1e-10
# Frames that are transformed at a time, which bounds memory.
_CHUNK_FRAMES = 1024

# Slaney's mel scale: linear up to 1000 Hz, then logarithmic with 27 steps per factor of 6.4.
_HZ_PER_MEL = 200 / 3
_BREAK_HZ = 1000.0
_BREAK_MEL = _BREAK_HZ / _HZ_PER_MEL
_LOG_STEP = np.log(6.4) / 27


def log_mel(
    source: Path,
    out: Path,
    *,
    seconds: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = None,
    overlap: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0,
    include_last: bool = True,
    sample_rate: Annotated[int | None, Field(ge=1)] = None,
    n_fft: Annotated[int, Field(ge=2)] = 1024,
    hop_length: Annotated[int, Field(ge=1)] = 256,
    n_mels: Annotated[int, Field(ge=1)] = 64,
    fmin: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0,
    fmax: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = None,
    top_db: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = 80.0,
    annotations: Annotated[str | None, ContentCounts(*SUFFIXES)] = None,
    label_column: str | None = None,
    min_overlap_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0,
    only_labelled: bool = False,
) -> Iterator[dict[str, Any]]:
    """Write a log-mel spectrogram of each clip: float32 [mels, frames], in dB from -100 up.

    Args:
        source: The recording. Its channels are averaged.
        out: The folder for the `.npy` files.
        seconds: The length of a clip. None: the whole recording.
        overlap: As in `batchmill.steps.audio:split`.
        include_last: As in `split`.
        sample_rate: The rate in Hz to resample each clip to. None: the recording's.
        n_fft: Samples per frame.
        hop_length: Samples from the start of a frame to the start of the next.
        n_mels: The number of bands.
        fmin: The lowest frequency in Hz.
        fmax: The highest frequency in Hz. None: half the sample rate.
        top_db: The largest distance from the clip's loudest value.
        annotations: As in `split`.
        label_column: As in `split`.
        min_overlap_seconds: As in `split`.
        only_labelled: As in `split`.

    Yields:
        A row per clip as `split`, with `mels` and `frames` instead of `channels` and `peak`.

    Raises:
        ValueError: As `split`, or `n_fft` or the sample rate does not allow these bands.
    """
    selection = ClipFilter(
        labels=read_labels(source, annotations, label_column=label_column),
        include_last=include_last,
        min_overlap_seconds=min_overlap_seconds,
        only_labelled=only_labelled,
    )
    with open_recording(source) as recording:
        length = hop = recording.frames
        if seconds is not None:
            length, hop = to_frames(seconds, overlap, recording.samplerate)
        rate = sample_rate or recording.samplerate
        bank = mel_filters(rate, n_fft, n_mels, fmin, rate / 2 if fmax is None else fmax)
        for clip in selection.select(recording, length, hop, "float32"):
            name = f"{clip.number:04d}.npy"
            image = _decibels(_to_mono(clip, recording, rate), bank, n_fft, hop_length, top_db)
            np.save(out / name, image)
            yield clip.row(name, source, sample_rate=rate, mels=n_mels, frames=image.shape[1])


def _to_mono(clip: Clip, recording: Recording, new_rate: int) -> np.ndarray:
    """Average the channels, and resample to a new rate."""
    sound: np.ndarray = clip.samples.mean(axis=1, dtype=np.float64)
    rate = recording.samplerate
    return sound if rate == new_rate else soxr.resample(sound, rate, new_rate)


@lru_cache(maxsize=8)
def mel_filters(rate: int, n_fft: int, n_mels: int, fmin: float, fmax: float) -> np.ndarray:
    """Return triangular filters of equal area, evenly spaced on the mel scale.

    Scale and area are those of Slaney's Auditory Toolbox (Interval Research, Technical Report
    1998-010). The values are those of `librosa.filters.mel`.

    Args:
        rate: The sample rate in Hz.
        n_fft: Samples per frame.
        n_mels: The number of filters.
        fmin: The lower end of the first filter in Hz.
        fmax: The upper end of the last filter in Hz.

    Returns:
        The weights, [mels, bins].

    Raises:
        ValueError: The range exceeds the spectrum, or a filter is narrower than a bin.
    """
    if not fmin < fmax <= rate / 2:
        raise ValueError(
            f"the band from fmin ({fmin:g} Hz) to fmax ({fmax:g} Hz) must lie within 0 and "
            f"{rate / 2:g} Hz, half the sample rate. Change them, or set a sample_rate."
        )
    edges = _hz(np.linspace(_mel(fmin), _mel(fmax), n_mels + 2))
    bins = np.fft.rfftfreq(n_fft, 1 / rate)
    lower, centre, upper = (edges[i : n_mels + i, None] for i in range(3))
    rising, falling = (bins - lower) / (centre - lower), (upper - bins) / (upper - centre)
    weights: np.ndarray = np.maximum(0, np.minimum(rising, falling)) * 2 / (upper - lower)
    empty = np.flatnonzero(~weights.any(axis=1))
    if len(empty):
        raise ValueError(
            f"{len(empty)} of {n_mels} mel bands are narrower than the {rate / n_fft:g} Hz that "
            f"n_fft={n_fft} resolves at {rate} Hz. Lower n_mels, or raise n_fft or fmin."
        )
    return weights


def _mel(hz: float) -> float:
    if hz < _BREAK_HZ:
        return hz / _HZ_PER_MEL
    return float(_BREAK_MEL + np.log(hz / _BREAK_HZ) / _LOG_STEP)


def _hz(mel: np.ndarray) -> np.ndarray:
    above = _BREAK_HZ * np.exp(_LOG_STEP * (np.maximum(mel, _BREAK_MEL) - _BREAK_MEL))
    return np.where(mel < _BREAK_MEL, mel * _HZ_PER_MEL, above)


def _decibels(
    sound: np.ndarray, bank: np.ndarray, n_fft: int, hop_length: int, top_db: float | None
) -> np.ndarray:
    """Return the power in each band of each frame. Frame i is centred at sample i * hop_length."""
    # A periodic Hann window.
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n_fft) / n_fft)
    padded = np.pad(sound, (n_fft // 2, n_fft - n_fft // 2))
    count = 1 + len(sound) // hop_length
    frames = np.lib.stride_tricks.sliding_window_view(padded, n_fft)[::hop_length][:count]
    bounds = [np.flatnonzero(weights)[[0, -1]] + [0, 1] for weights in bank]
    image = np.empty((len(bank), count), np.float32)
    for start in range(0, count, _CHUNK_FRAMES):
        chunk = slice(start, min(start + _CHUNK_FRAMES, count))
        power = np.abs(np.fft.rfft(frames[chunk] * hann)) ** 2
        for band, (first, end) in enumerate(bounds):
            # Not `@`: BLAS splits sums among threads, so the last bit depends on their number.
            band_power = np.einsum("tf,f->t", power[:, first:end], bank[band, first:end])
            image[band, chunk] = 10 * np.log10(np.maximum(band_power, _FLOOR))
    if top_db is not None:
        image = np.maximum(image, image.max() - np.float32(top_db))
    return image
