"""Measure the time to open a ledger that many runs have written to.

python -m benchmarks.many_runs [--inputs 1000000] [--runs 1000]

Creates a ledger with all inputs, then records many runs. Each run executes a hundred inputs again,
records the next state, and removes what no state refers to, as a real run does. A separate process
then reads the columns that a plan needs.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from batchmill.core.digests import input_id
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.parts import Origin
from batchmill.core.ledger.snapshots import Snapshot
from batchmill.core.outcome import Outcome, WrittenFile
from batchmill.core.planning.plan import PLANNED_COLUMNS
from batchmill.core.storage import LocalStore
from batchmill.datasets.maintenance.cleanup import sweep
from batchmill.datasets.maintenance.merging import with_merged_parts

PART_INPUTS = 20_000
RUN_INPUTS = 100


def record(ledger: Ledger, run: int, part: int, numbers: Iterable[int]) -> None:
    """Commit some inputs as ok, with one output each."""
    origin = Origin('{"label":1}', "step", run)
    records = []
    for number in numbers:
        name = f"in/{number // 1000:04d}/{number:07d}.txt"
        identifier = input_id(name)
        file = WrittenFile(f"files/{identifier}/0.txt", 100, f"xxh128:{number:032x}")
        outcome = Outcome(name, identifier, "ok", 1, 0.01, time.time(), "here")
        outcome = outcome._replace(rows='[{"part":0}]', outputs=(file,), size=1, mtime_ns=1)
        records.append((outcome, origin))
    ledger.commit(f"{run:06d}-made-{part:05d}", records)


def measure(folder: Path) -> None:
    """Read the columns of a plan. Print seconds, peak memory and the number of parts as JSON."""
    begun = time.perf_counter()
    ledger = Ledger(LocalStore(folder))
    ledger.check_version()
    runs = len(ledger.runs())
    records = ledger.records(PLANNED_COLUMNS)
    seconds = time.perf_counter() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    found = {"seconds": seconds, "peak_mib": peak, "parts": len(ledger.part_names())}
    print(json.dumps(found | {"runs": runs, "inputs": len(records)}))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder:
        measure(options.folder)
        return
    with tempfile.TemporaryDirectory() as name:
        ledger = Ledger(LocalStore(name))
        ledger.create()
        for part, start in enumerate(range(0, options.inputs, PART_INPUTS)):
            stop = min(start + PART_INPUTS, options.inputs)
            record(ledger, 1, part, range(start, stop))
        state, slowest = ledger.outcomes(1), 0.0
        for run in range(2, options.runs + 1):
            start = run * RUN_INPUTS % options.inputs
            record(ledger, run, 0, range(start, min(start + RUN_INPUTS, options.inputs)))
            ledger.write_summary(run, {"run": run})
            begun = time.perf_counter()
            state = state.with_outcomes(ledger.outcomes(run))
            state = ledger.files.write_state(run, with_merged_parts(ledger, state, run))
            ledger.snapshots.record(
                Snapshot(
                    number=run,
                    created=1.0,
                    state=state.file or {},
                    shown=0,
                    step="step",
                    settings={},
                    made_of="",
                )
            )
            sweep(ledger, state, run, 0)
            slowest = max(slowest, time.perf_counter() - begun)
        command = [sys.executable, "-m", "benchmarks.many_runs", "--folder", name]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    seen = json.loads(done.stdout)
    print("\n| | |\n|---|---|")
    print(f"| runs, ledger parts at the end | {seen['runs']:,}, {seen['parts']:,} |")
    print(f"| read the ledger for {seen['inputs']:,} inputs | {seen['seconds']:.1f} s |")
    print(f"| peak memory of reading | {seen['peak_mib']:,} MiB |")
    print(f"| longest time to record the state after a run | {slowest:.1f} s |")


if __name__ == "__main__":
    main()
