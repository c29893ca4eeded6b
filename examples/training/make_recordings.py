"""Synthesise thirty short recordings of fifteen birds, and write a manifest with labels.

python make_recordings.py FOLDER
"""

import csv
import sys
from pathlib import Path

import numpy as np
import soundfile

RATE = 16_000
SECONDS = 8
KINDS = ("whistle", "trill", "hum")
BIRDS_OF_A_KIND, RECORDINGS_OF_A_BIRD = 5, 2


def song(kind: str, pitch: float, seconds: float) -> np.ndarray:
    """Return one call: a rising tone, a row of short notes, or a low tone with overtones."""
    time = np.arange(int(seconds * RATE)) / RATE
    if kind == "whistle":
        wave = np.sin(2 * np.pi * (pitch * time + 0.5 * pitch * time**2 / seconds))
    elif kind == "trill":
        wave = np.sin(2 * np.pi * 1.5 * pitch * time) * (np.sin(2 * np.pi * 15 * time) > 0)
    else:
        wave = sum(np.sin(2 * np.pi * 0.2 * pitch * n * time) / n for n in range(1, 6))
    return wave * np.hanning(len(time))


def recording(kind: str, pitch: float, random: np.random.Generator) -> np.ndarray:
    """Return eight seconds of noise with calls at random times."""
    sound = 0.02 * random.standard_normal(SECONDS * RATE)
    for second in range(SECONDS):
        call = song(kind, pitch * random.uniform(0.97, 1.03), random.uniform(0.4, 0.7))
        start = int((second + random.uniform(0, 0.25)) * RATE)
        sound[start : start + len(call)] += random.uniform(0.1, 0.4) * call
    return np.clip(sound, -1, 1).astype(np.float32)


def main(folder: Path) -> None:
    """Write the recordings and their manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(7)
    rows = []
    for kind in KINDS:
        for bird in range(BIRDS_OF_A_KIND):
            pitch = random.uniform(1200, 2600)
            for number in range(RECORDINGS_OF_A_BIRD):
                name = f"{kind}-{bird}-{number}.flac"
                soundfile.write(folder / name, recording(kind, pitch, random), RATE)
                rows.append({"input": name, "label": kind, "bird": f"{kind}-{bird}"})
    with (folder / "manifest.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    print(f"{len(rows)} recordings of {len({row['bird'] for row in rows})} birds in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
