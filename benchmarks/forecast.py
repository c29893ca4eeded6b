"""Compare forecasts with real times and failures, for seven kinds of work.

python -m benchmarks.forecast [--inputs 400] [--sample 40] [--rounds 1] [--seed 0] [--record FILE]

- A step keeps a core busy, for a time proportional to the size of its input.
- A step sleeps for 50 ms, as a step does that waits for a network.
- As the first one, and one input of 50 is 50 times larger than the others.
- A step does nothing, so the time is the overhead of the engine.
- As the second one, and one input of 20 fails, or all large inputs fail, or a fifth fails once.

A run executes a sample and forecasts the other inputs. The next run executes them. Both times are
without the start-up. `--record` writes the records of both runs to a file, with a JSON document in
each line. `tests/core/planning/test_recorded_runs.py` reads it.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from batchmill.core.ledger.open import open_ledger
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


def fails(source: Path) -> None:
    """Sleep, and fail for one input of 20, chosen by its content."""
    waits(source)
    if source.read_bytes()[0] < 256 / 20:
        raise ValueError


def fails_if_large(source: Path) -> None:
    """Sleep, and fail for large inputs."""
    waits(source)
    if source.stat().st_size > 4 * BYTES:
        raise ValueError


def fails_once(source: Path) -> None:
    """Sleep, and fail for a fifth of the inputs in their first attempt."""
    waits(source)
    mark = source.with_suffix(".tried")
    if source.read_bytes()[0] < 256 / 5 and not mark.exists():
        mark.touch()
        raise ValueError


KINDS: Mapping[str, tuple[Callable[[Path], None], float]] = {
    "a core is busy for 10 ms per input": (works, 0),
    "each input waits for 50 ms": (waits, 0),
    "as the first, and one input of 50 is 50 times larger": (works, 1 / TAIL),
    "nothing": (nothing, 0),
    "one input of 20 fails": (fails, 0),
    "all large inputs fail": (fails_if_large, 1 / 10),
    "a fifth fails once": (fails_once, 0),
}


def make_inputs(folder: Path, count: int, share_of_large: float, seed: int) -> None:
    """Write `count` files whose sizes vary by a factor of two, and some that are much larger."""
    folder.mkdir()
    chance = random.Random(seed)
    for number in range(count):
        size = round(BYTES * chance.uniform(0.7, 1.4))
        size *= TAIL_FACTOR if chance.random() < share_of_large else 1
        (folder / f"{number}.bin").write_bytes(bytes([chance.randrange(256)]) * size)


def run(folder: Path, step: str, settings: Mapping[str, str], *options: str) -> dict[str, Any]:
    """Run over the inputs, and return what `run --json` prints."""
    command = [sys.executable, "-m", "batchmill", "run", str(folder / "in"), "--json"]
    command += ["--pattern", "*.bin", "--max-failures", "100%"]
    command += ["--output", str(folder / "out"), "--step", f"benchmarks.forecast:{step}", *options]
    ran = subprocess.run(
        command, env=settings, cwd=Path(__file__).parents[1], check=True, capture_output=True
    )
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def real_seconds(folder: Path, run: int) -> float:
    """Return how long a run took, without the start-up."""
    return float((open_ledger(str(folder / "out")).read_summary(run) or {})["seconds"])


def recorded(folder: Path, run: int) -> list[tuple[Any, ...]]:
    """Return the name, size, outcome, attempts, seconds and end of each input of a run."""
    state = open_ledger(str(folder / "out")).state()
    columns = ["input", "size", "outcome", "attempts", "seconds", "finished_at"]
    records = state.of_run(run).records(columns).select(columns)
    return [
        (*row[:4], round(row[4], 4), round(row[5] % 1e6, 3))
        for row in zip(*(column.to_pylist() for column in records.columns), strict=True)
    ]


def main() -> None:
    """Print one line per kind of work."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=400)
    parser.add_argument("--sample", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, default=Path(os.devnull))
    given = parser.parse_args()
    print("| work | forecast, s | interval, s | real time, s | error |\n|---|---|---|---|---|")
    with (
        tempfile.TemporaryDirectory() as home,
        prefect_server(Path(home)) as (_, settings),
        given.record.open("w") as record,
    ):
        seeds = range(given.seed, given.seed + given.rounds)
        for seed, (name, (step, share)) in product(seeds, KINDS.items()):
            folder = Path(tempfile.mkdtemp(dir=home))
            make_inputs(folder / "in", given.inputs, share, seed)
            sample = run(folder, step.__name__, settings, "--sample", str(given.sample))
            found = sample["forecast"]["seconds"]
            before = recorded(folder, sample["run"]), real_seconds(folder, sample["run"])
            rest = run(folder, step.__name__, settings)["run"]
            real = real_seconds(folder, rest)
            after = recorded(folder, rest), real
            json.dump({"kind": name, "before": before, "after": after}, record)
            record.write("\n")
            interval = f"{found['low']:.1f} to {found['high']:.1f}"
            cells = [name, f"{found['likely']:.1f}", interval, f"{real:.1f}"]
            print(f"| {' | '.join(cells)} | {found['likely'] / real - 1:+.0%} |", flush=True)


if __name__ == "__main__":
    main()
