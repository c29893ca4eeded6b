"""Compare forecasts with real times, for four kinds of work.

python -m benchmarks.forecast [--inputs 400] [--sample 40]

- A step keeps a core busy, for a time proportional to the size of its input.
- A step sleeps for 50 ms, as a step does that waits for a network.
- As the first one, and one input of 50 is 50 times larger than the others.
- A step does nothing, so the time is the overhead of the engine.

A run executes a sample and forecasts the time of the other inputs. The next run executes them. Both
times are without the start-up.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.overhead import busy
from benchmarks.scale import prefect_server

BYTES, WAIT_SECONDS = 10_000, 0.05
TAIL, TAIL_FACTOR = 50, 50
# A core is busy for 10 ms with an input of `BYTES`.
SECONDS_PER_BYTE = 0.01 / BYTES


def works(source: Path) -> None:
    """Keep a core busy for a time proportional to the size of the file."""
    busy(source.stat().st_size * SECONDS_PER_BYTE)


def waits(source: Path) -> None:  # noqa: ARG001
    """Sleep."""
    time.sleep(WAIT_SECONDS)


def nothing(source: Path) -> None:
    """Do nothing."""


KINDS: Mapping[str, tuple[Callable[[Path], None], float]] = {
    "a core is busy for 10 ms per input": (works, 0),
    "each input waits for 50 ms": (waits, 0),
    "as the first, and one input of 50 is 50 times larger": (works, 1 / TAIL),
    "nothing": (nothing, 0),
}


def make_inputs(folder: Path, count: int, share_of_large: float) -> None:
    """Write `count` files whose sizes vary by a factor of two, and some that are much larger."""
    folder.mkdir()
    chance = random.Random(1)
    for number in range(count):
        size = round(BYTES * chance.uniform(0.7, 1.4))
        size *= TAIL_FACTOR if chance.random() < share_of_large else 1
        (folder / f"{number}.bin").write_bytes(bytes(size))


def run(folder: Path, step: str, settings: Mapping[str, str], *options: str) -> dict[str, Any]:
    """Run over the inputs, and return what `run --json` prints."""
    command = [sys.executable, "-m", "batchmill", "run", str(folder / "in"), "--json"]
    command += ["--output", str(folder / "out"), "--step", f"benchmarks.forecast:{step}", *options]
    ran = subprocess.run(
        command, env=settings, cwd=Path(__file__).parents[1], check=True, capture_output=True
    )
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def real_seconds(folder: Path, run: int) -> float:
    """Return how long a run took, without the start-up."""
    summary = folder / "out" / ".batchmill" / "runs" / f"{run:06d}" / "summary.json"
    return float(json.loads(summary.read_text())["seconds"])


def main() -> None:
    """Print one line per kind of work."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=400)
    parser.add_argument("--sample", type=int, default=40)
    given = parser.parse_args()
    print("| work | forecast, s | interval, s | real time, s | error |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as home, prefect_server(Path(home)) as (_, settings):
        for name, (step, share) in KINDS.items():
            folder = Path(tempfile.mkdtemp(dir=home))
            make_inputs(folder / "in", given.inputs, share)
            sample = run(folder, step.__name__, settings, "--sample", str(given.sample))
            found = sample["forecast"]["seconds"]
            real = real_seconds(folder, run(folder, step.__name__, settings)["run"])
            interval = f"{found['low']:.1f} to {found['high']:.1f}"
            cells = [name, f"{found['likely']:.1f}", interval, f"{real:.1f}"]
            print(f"| {' | '.join(cells)} | {found['likely'] / real - 1:+.0%} |", flush=True)


if __name__ == "__main__":
    main()
