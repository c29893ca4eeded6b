"""Turn sound recordings into log-mel spectrograms, as `.npy` files (extra `audio`)."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from batchmill.errors import StepError
from batchmill.step.tracked_file import ContentCounts
from batchmill.steps.annotations import SUFFIXES, annotations_of, label_columns
from batchmill.steps.recordings import frames_of, open_recording, windows

try:
    import numpy as np
    import soxr
except ImportError as error:
    raise StepError("Spectrograms need numpy and soxr: pip install 'batchmill[audio]'") from error

# Nothing is told apart below this power, -100 dB: the logarithm of silence is infinite.
_FLOOR = 1e-10
# So many frames are transformed at a time, which bounds memory.
_CHUNK_FRAMES = 1024

# Slaney's mel scale: straight up to 1000 Hz, then 27 steps for each factor of 6.4.
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
    """Write a log-mel spectrogram of each clip of `seconds` (None: of all): float32 [mels, frames].

    Channels are averaged and, with `sample_rate`, each clip is resampled. A frame of `n_fft`
    samples begins every `hop_length`; the power in `n_mels` bands between `fmin` and `fmax` (None:
    half the sample rate) is given in dB, from -100 on, and with `top_db` not further below the
    clip's loudest. `seconds`, `overlap`, `include_last` and the four about labels are as in
    `batchmill.steps.audio:split`.

    Yields for each clip: `output`, `source` (the recording's file name), `clip` (its number from
    0), `start` and `end` (seconds), `sample_rate` (Hz, of what was transformed), `mels`, `frames`;
    with annotations, `labels` and `label`.

    Raises ValueError for a recording that is empty, damaged or shorter than its header says, and
    for bands that the sample rate or `n_fft` cannot give; soundfile.LibsndfileError for one that is
    no sound file.
    """
    track = annotations_of(source, annotations, label_column=label_column)
    with open_recording(source) as recording:
        rate = recording.samplerate
        length, hop = recording.frames, recording.frames
        if seconds is not None:
            length, hop = frames_of(seconds, overlap, rate)
        used = sample_rate or rate
        bank = mel_filters(used, n_fft, n_mels, fmin, used / 2 if fmax is None else fmax)
        for number, (first, clip) in enumerate(windows(recording, length, hop, "float32")):
            start, end = first / rate, (first + len(clip)) / rate
            labels = track.within(start, end, min_overlap_seconds) if track else []
            if (len(clip) < length and not include_last) or (only_labelled and not labels):
                continue  # Not break: whether the recording is whole, its end tells.
            sound = clip.mean(axis=1, dtype=np.float64)
            if used != rate:
                sound = soxr.resample(sound, rate, used)
            image = _decibels(sound, bank, n_fft, hop_length)
            if top_db is not None:
                image = np.maximum(image, image.max() - np.float32(top_db))
            name = f"{number:04d}.npy"
            np.save(out / name, image)
            row = {
                "output": name,
                "source": source.name,
                "clip": number,
                "start": start,
                "end": end,
                "sample_rate": used,
                "mels": image.shape[0],
                "frames": image.shape[1],
            }
            yield row | (label_columns(labels) if track else {})


@lru_cache(maxsize=8)
def mel_filters(rate: int, n_fft: int, n_mels: int, fmin: float, fmax: float) -> np.ndarray:
    """Return triangular filters of equal area, evenly spaced on the mel scale: [mels, bins].

    Scale and area are those of Slaney's Auditory Toolbox (Interval Research, Technical Report
    1998-010), with the same values as `librosa.filters.mel`. Raises ValueError for a band outside
    of the spectrum, and for filters that are narrower than its bins.
    """
    if not fmin < fmax <= rate / 2:
        raise ValueError(
            f"the band from fmin ({fmin:g} Hz) to fmax ({fmax:g} Hz) must lie within 0 and "
            f"{rate / 2:g} Hz, half the sample rate. Change them, or give a sample_rate."
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
            f"n_fft={n_fft} tells apart at {rate} Hz. Lower n_mels, or raise n_fft or fmin."
        )
    return weights


def _mel(hz: float) -> float:
    if hz < _BREAK_HZ:
        return hz / _HZ_PER_MEL
    return float(_BREAK_MEL + np.log(hz / _BREAK_HZ) / _LOG_STEP)


def _hz(mel: np.ndarray) -> np.ndarray:
    above = _BREAK_HZ * np.exp(_LOG_STEP * (np.maximum(mel, _BREAK_MEL) - _BREAK_MEL))
    return np.where(mel < _BREAK_MEL, mel * _HZ_PER_MEL, above)


def _decibels(sound: np.ndarray, bank: np.ndarray, n_fft: int, hop_length: int) -> np.ndarray:
    """Return the power in each band of each frame; frame i is centred at sample i * hop_length."""
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
            # Not `@`: a BLAS divides the sums among its threads, and the last bit depends on them.
            heard = np.einsum("tf,f->t", power[:, first:end], bank[band, first:end])
            image[band, chunk] = 10 * np.log10(np.maximum(heard, _FLOOR))
    return image
