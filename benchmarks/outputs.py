"""Measure a whole command that writes many small outputs, as files and in packs.

    python -m benchmarks.outputs [--inputs 20000]

The bare loop is a DataLoader whose items write the same files. It records nothing.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

from benchmarks.startup import environment

WORKERS = 2


def copy(source: Path, out: Path) -> dict[str, str]:
    """Write a small output for each input."""
    (out / "copy.txt").write_text(source.read_text())
    return {"output": "copy.txt"}


class Copies(Dataset[int]):
    """Writes an output when an item is read."""

    def __init__(self, inputs: Path, outputs: Path) -> None:
        self.paths = sorted(map(str, inputs.iterdir()))
        self.outputs = outputs

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> int:
        (self.outputs / f"{index}.txt").write_text(Path(self.paths[index]).read_text())
        return index


def run_bare(inputs: Path, outputs: Path) -> None:
    """Copy all inputs in a bare loop."""
    outputs.mkdir()
    loader = DataLoader(Copies(inputs, outputs), batch_size=32, num_workers=WORKERS)
    if sum(len(batch) for batch in loader) != len(os.listdir(outputs)):
        raise RuntimeError("some outputs are missing")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--bare", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare:
        run_bare(*options.bare)
        return
    with tempfile.TemporaryDirectory(prefix="batchmill-benchmark-") as name:
        folder = Path(name)
        inputs = folder / "in"
        inputs.mkdir()
        for number in range(options.inputs):
            (inputs / f"{number:06}.txt").write_text(f"word {number}")
        ours = [sys.executable, "-m", "batchmill", "run", str(inputs)]
        ours += ["--step", "benchmarks.outputs:copy", "--num-workers", f"{WORKERS}", "--output"]
        bare = [sys.executable, "-m", "benchmarks.outputs", "--bare", str(inputs)]
        commands = {
            "a bare DataLoader loop": [*bare, str(folder / "bare")],
            "batchmill, a file for each output": [*ours, str(folder / "loose")],
            "batchmill, in packs": [*ours, str(folder / "packed"), "--pack", "64MB"],
        }
        settings = environment(folder / "prefect")
        # The first run creates Prefect's database.
        (folder / "few").mkdir()
        (folder / "few" / "a.txt").write_text("a")
        few = [one if one != str(inputs) else str(folder / "few") for one in ours]
        subprocess.run([*few, str(folder / "first")], env=settings, check=True, capture_output=True)
        print(f"| {options.inputs:,} outputs | whole command, s | files |\n|---|---|---|")
        for title, command in commands.items():
            begun = time.perf_counter()
            subprocess.run(command, env=settings, check=True, capture_output=True)
            seconds = time.perf_counter() - begun
            place = Path(command[-1] if command[-1] != "64MB" else command[-3])
            files = sum(len(names) for _, _, names in os.walk(place))
            print(f"| {title} | {seconds:.1f} | {files:,} |", flush=True)


if __name__ == "__main__":
    main()
