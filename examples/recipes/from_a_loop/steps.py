from pathlib import Path

import soundfile
import torch
from torch.utils.data import Dataset


def mono(source: Path, out: Path) -> dict:
    """Write a recording with one channel as WAV."""
    samples, rate = soundfile.read(source, always_2d=True)
    sound = samples.mean(axis=1)
    soundfile.write(out / "mono.wav", sound, rate)
    return {"output": "mono.wav", "seconds": len(sound) / rate, "peak": abs(sound).max()}


def measure(source: Path) -> dict:
    """Return the length and the peak of a recording."""
    samples, rate = soundfile.read(source, always_2d=True)
    return {"seconds": len(samples) / rate, "peak": abs(samples).max()}


def add_length(source: Path, row: dict) -> dict:
    """Return the length of a recording. `row` has the other columns of the table."""
    return {"seconds": soundfile.info(source).duration, "is_german": row["language"] == "de"}


class Brightness(Dataset):
    """The mean frequency of each recording, in Hz."""

    def __init__(self, files):
        self.files = files

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        samples, rate = soundfile.read(self.files[index], always_2d=True)
        spectrum = torch.fft.rfft(torch.from_numpy(samples.mean(axis=1))).abs()
        frequencies = torch.fft.rfftfreq(len(samples), 1 / rate)
        return (spectrum @ frequencies.double() / spectrum.sum()).item()
