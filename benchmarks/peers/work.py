"""The work that all contenders do, and its input files.

This module does not depend on any contender. It imports only the standard library; functions that
need numpy and soundfile import them. Each function takes a file and an output folder and returns
rows. `output` in a row names a file in that folder. Most contenders use `make_work`, which gives
each file its own output folder and adds the file's name to the rows.
"""

import shutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

Row = dict[str, Any]
Work = Callable[[Path, Path], list[Row]]

SAMPLE_RATE = 22_050
RECORDING_SECONDS = 300.0
CLIP_SECONDS = 5.0
MELS = 64
N_FFT = 1024
HOP = 512
# The lowest power, -100 dB. The logarithm of silence would be infinite.
FLOOR = 1e-10
# Only a few recordings are created, and copied. Creating all would take longer than the work.
DISTINCT = 4
SUFFIXES = {"words": ".txt", "clips": ".flac", "spectrograms": ".flac"}
# The columns besides paths.
COLUMNS = {
    "words": ("word", "characters", "first", "last"),
    "clips": ("clip", "samples", "peak"),
    "spectrograms": ("clip", "frames"),
}


def words(source: Path, out: Path) -> list[Row]:  # noqa: ARG001
    """Return a row with a word and parts of it. Writes no file."""
    word = source.read_text(encoding="utf-8").strip()
    return [{"word": word, "characters": len(word), "first": word[:3], "last": word[-3:]}]


def clips(source: Path, out: Path) -> list[Row]:
    """Cut a recording into 16-bit WAV files of 5 s, with one row per file."""
    import numpy as np
    import soundfile

    rows = []
    with soundfile.SoundFile(source) as recording:
        rate = recording.samplerate
        blocks = recording.blocks(round(CLIP_SECONDS * rate), dtype="int16")
        for number, clip in enumerate(blocks):
            name = f"{number:04d}.wav"
            soundfile.write(out / name, clip, rate, subtype="PCM_16", format="WAV")
            peak = int(np.abs(clip.astype(np.int32)).max())
            rows.append({"output": name, "clip": number, "samples": len(clip), "peak": peak})
    return rows


def spectrograms(source: Path, out: Path) -> list[Row]:
    """Write a log-mel spectrogram of each 5 s of a recording: float32 [mels, frames], in dB."""
    import numpy as np
    import soundfile

    rows = []
    with soundfile.SoundFile(source) as recording:
        rate = recording.samplerate
        bank = mel_filters(rate)
        # A periodic Hann window.
        window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(N_FFT) / N_FFT)
        for number, clip in enumerate(recording.blocks(round(CLIP_SECONDS * rate))):
            padded = np.pad(clip, (0, max(0, N_FFT - len(clip))))
            frames = np.lib.stride_tricks.sliding_window_view(padded, N_FFT)[::HOP]
            power = np.abs(np.fft.rfft(frames * window)) ** 2
            image = 10 * np.log10(np.maximum(bank @ power.T, FLOOR))
            # Rounded, because versions of numpy sum in different orders. All contenders must write
            # the same bytes.
            image = np.round(image, 2).astype(np.float32)
            name = f"{number:04d}.npy"
            np.save(out / name, image)
            rows.append({"output": name, "clip": number, "frames": image.shape[1]})
    return rows


def make_work(kind: str) -> Work:
    """Return a function that takes a file and the output folder of all files.

    Outputs are written to a subfolder that is named after the file. In the rows, `output` is
    relative to the output folder, and `input` is the name of the file.
    """
    step: Work = {"words": words, "clips": clips, "spectrograms": spectrograms}[kind]

    def work(source: Path, out: Path) -> list[Row]:
        if kind == "words":
            return [{"input": source.name, **row} for row in step(source, out)]
        own = out / source.stem
        own.mkdir(parents=True)
        return [
            {"input": source.name, **row, "output": f"{source.stem}/{row['output']}"}
            for row in step(source, own)
        ]

    return work


def make_inputs(
    kind: str, count: int, folder: Path, *, seconds: float = RECORDING_SECONDS
) -> list[Path]:
    """Write `count` files for one kind of work, and return their paths. They are reproducible."""
    folder.mkdir(parents=True)
    paths = [folder / f"{number:06d}{SUFFIXES[kind]}" for number in range(count)]
    if kind == "words":
        for number, path in enumerate(paths):
            path.write_text(f"{_word(number)}\n", encoding="utf-8")
        return paths
    for path in paths[:DISTINCT]:
        _write_recording(path, seconds)
    for number, path in enumerate(paths[DISTINCT:]):
        shutil.copyfile(paths[number % DISTINCT], path)
    return paths


def batch_size_for(count: int, workers: int) -> int:
    """Return the batch size: 32, or less if a worker would be idle."""
    return max(1, min(32, count // (4 * workers)))


def parts_for(count: int, workers: int) -> int:
    """Return the number of parts, 16 per worker, for tools in which each part has a cost."""
    return min(count, 16 * workers)


@lru_cache
def mel_filters(rate: int) -> "np.ndarray":
    """Return triangular filters, evenly spaced on the mel scale: [mels, bins]."""
    import numpy as np

    highest = 2595 * np.log10(1 + rate / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, highest, MELS + 2) / 2595) - 1)
    bins = np.fft.rfftfreq(N_FFT, 1 / rate)
    lower, centre, upper = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (bins - lower) / (centre - lower), (upper - bins) / (upper - centre)
    filters: np.ndarray = np.maximum(0, np.minimum(rising, falling))
    return filters


def _word(number: int) -> str:
    """Return a word of 6 to 14 letters."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    state = number + 1
    found = []
    for _ in range(6 + number % 9):
        state = (state * 1_103_515_245 + 12_345) % 2**31
        found.append(letters[(state >> 16) % 26])
    return "".join(found)


def _write_recording(path: Path, seconds: float) -> None:
    """Write a 16-bit tone with noise. FLAC compresses it about as well as a real recording."""
    import numpy as np
    import soundfile

    number = int(path.stem)
    random = np.random.default_rng(number)
    time = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    # The pitch of the tone moves up and down, twice as fast in each following recording.
    sound = 0.4 * np.sin(2 * np.pi * (800 * time + 300 * np.sin(2**number * time)))
    sound += 0.02 * random.standard_normal(len(time))
    soundfile.write(path, sound, SAMPLE_RATE, subtype="PCM_16", format="FLAC")
