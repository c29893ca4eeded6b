"""Measure the time and memory of a run with nothing to do.

python -m benchmarks.unchanged [--inputs 1000000] [--parts 64] [--rounds 5]

Creates files of one byte, their manifest, and a ledger in which all inputs are ok. Then
`batchmill run` runs over them without a Prefect server. For comparison, another process reads the
manifest with pandas and calls `os.stat` for each file. Both are timed as whole commands, in turn.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd

from batchmill.core.digests import input_id
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.parts import Origin
from batchmill.core.manifest import load_manifest
from batchmill.core.outcome import Outcome
from batchmill.core.planning.job import Job, make_job
from batchmill.core.planning.prepare import prepare
from batchmill.core.storage import LocalStore
from batchmill.core.user_step.load import load_step
from benchmarks.startup import environment, seconds_of

STEP = "batchmill.steps.words:split"


def make_inputs(folder: Path, count: int) -> None:
    """Write the files, 1,000 per folder, and the manifest."""
    with (folder / "manifest.csv").open("w") as manifest:
        manifest.write("input,label\n")
        for number in range(count):
            name = f"in/{number // 1000:04d}/{number:07d}.txt"
            if number % 1000 == 0:
                (folder / name).parent.mkdir(parents=True)
            (folder / name).write_bytes(b"x")
            manifest.write(f"{name},{number % 7}\n")


def make_ledger(job: Job, parts: int) -> None:
    """Record all inputs as ok, in `parts` ledger parts."""
    ledger = Ledger(LocalStore(job.output))
    ledger.create()
    origin = Origin("{}", load_step(job.step, job.params).identity, 1)
    inputs = load_manifest(job.manifest).inputs
    size = -(-len(inputs) // parts)
    for part in range(parts):
        records = [
            (
                Outcome(
                    row["input"],
                    input_id(row["input"]),
                    "ok",
                    1,
                    0.001,
                    time.time(),
                    "here",
                    rows='[{"part":0}]',
                    size=row["size"],
                    mtime_ns=row["mtime_ns"],
                    content="xxh128:0",
                ),
                origin,
            )
            for row in inputs.slice(part * size, size).to_pylist()
        ]
        ledger.commit(f"000001-made-{part:05d}", records)


def measure(folder: Path) -> None:
    """Plan a run in this process. Print seconds and peak memory as JSON."""
    job = make_job(manifest=str(folder / "manifest.csv"), step=STEP, output=str(folder / "out"))
    begun = time.perf_counter()
    load_manifest(job.manifest)
    loaded = time.perf_counter()
    counts = prepare(job).plan.counts
    planned = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    if counts["unchanged"] != sum(counts.values()):
        raise RuntimeError(f"some inputs are not unchanged: {counts}")
    print(json.dumps({"load": loaded - begun, "all": planned - loaded, "peak_mib": peak}))


def compare(folder: Path) -> None:
    """Read the manifest with pandas, and call `os.stat` for each file."""
    names = pd.read_csv(folder / "manifest.csv")["input"]
    for name in names:
        os.stat(f"{folder}/{name}")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--parts", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", choices=("plan", "compare"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        (measure if options.measure == "plan" else compare)(options.folder)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_inputs(folder, options.inputs)
        job = make_job(manifest=str(folder / "manifest.csv"), step=STEP, output=str(folder / "out"))
        make_ledger(job, options.parts)
        own = [sys.executable, "-m", "benchmarks.unchanged", "--folder", name, "--measure"]
        run = [sys.executable, "-m", "batchmill", "run", job.manifest]
        run += ["--step", STEP, "--output", job.output]
        settings = environment(folder / "prefect")
        root = Path(__file__).parents[1]
        seconds_of(run, settings, folder)  # Publishes the tables.
        rounds = [
            (seconds_of([*own, "compare"], settings, root), seconds_of(run, settings, folder))
            for _ in range(options.rounds)
        ]
        planned = subprocess.run([*own, "plan"], check=True, capture_output=True, text=True)
        seen: dict[str, float] = json.loads(planned.stdout)
    bare, ours = (statistics.median(seconds) for seconds in zip(*rounds, strict=True))
    print(f"{options.inputs:,} inputs, all unchanged; medians of {options.rounds} rounds\n")
    print("| | |\n|---|---|")
    print(f"| pandas reads the manifest, one `os.stat` per input | {bare:.1f} s |")
    print(f"| `batchmill run`, from the command to its end | {ours:.1f} s |")
    print(f"| ratio | {ours / bare:.2f} |")
    print(f"| load the manifest, with checks and stat | {seen['load']:.1f} s |")
    print(f"| the whole plan: load, ledger, compare | {seen['all']:.1f} s |")
    print(f"| peak memory of the plan | {seen['peak_mib']:,.0f} MiB |")


if __name__ == "__main__":
    main()
