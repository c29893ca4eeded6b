"""How long a manifest of a million rows takes to load and to plan, and in how much memory.

python -m benchmarks.manifest [--rows 1000000]

The inputs are not there (to make them would take longer than to measure); looking for one costs
about as much as looking at one.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

from batchmill.job import make_job, prepare
from batchmill.manifest import load_manifest


def main() -> None:
    """Print seconds and peak memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "manifest.csv")
        with path.open("w") as file:
            file.write("input,label\n")
            file.writelines(f"recordings/2026/file_{i:07d}.wav,{i % 7}\n" for i in range(rows))
        begun = time.perf_counter()
        load_manifest(str(path))
        print(f"load:  {time.perf_counter() - begun:6.2f} s")
        print(f"peak:  {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024:6} MiB")
        job = make_job(
            manifest=str(path), step="batchmill.steps.words:split", output=str(Path(name, "out"))
        )
        begun = time.perf_counter()
        prepare(job)
        print(f"load and plan: {time.perf_counter() - begun:6.2f} s")
        print(f"peak:  {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024:6} MiB")


if __name__ == "__main__":
    main()
