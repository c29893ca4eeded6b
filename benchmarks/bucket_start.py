"""Compare the start and the end of a run on a bucket with those of a run on a folder.

python -m benchmarks.bucket_start [--latency 0.03] [--rounds 5]

Both runs execute a step over ten small files, with a temporary Prefect server. The bucket is behind
a slow line, as in `benchmarks.buckets`. The medians are printed: the seconds from the command to
the first input, and from the last input to the end of the command.
"""

import argparse
import io
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import fsspec
import pandas as pd

from benchmarks.buckets import (
    BUCKET,
    CREDENTIALS,
    SERVER,
    at_port,
    delayed,
    s3_server,
    upload_inputs,
)
from benchmarks.machine import describe
from benchmarks.startup import environment

_FILES, _BYTES = 10, 1000


class Ends(NamedTuple):
    """The seconds before the first input of a run, and after the last one."""

    start: float
    end: float


def stamp(source: Path) -> dict[str, str]:  # noqa: ARG001
    """Return when the step was called."""
    return {"at": repr(time.time())}


def run(inputs: str, output: str, settings: dict[str, str]) -> Ends:
    """Run the step, and return the seconds before and after its calls."""
    job = ["run", inputs, "--step", "benchmarks.bucket_start:stamp", "--output", output]
    begun = time.time()
    command = [sys.executable, "-m", "batchmill", *job]
    subprocess.run(command, env=settings, check=True, capture_output=True)
    ended = time.time()
    options = {"endpoint_url": settings["AWS_ENDPOINT_URL"]} if "://" in output else {}
    with fsspec.open(f"{output}/metadata.csv", "rb", **options) as file:
        called = pd.read_csv(io.BytesIO(file.read()))["at"].astype(float)
    return Ends(called.min() - begun, ended - called.max())


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latency", type=float, default=0.03, help="seconds, there and back")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.environ |= CREDENTIALS
    print(describe())
    found: dict[str, list[Ends]] = {"folder": [], "bucket": []}
    with tempfile.TemporaryDirectory(prefix="batchmill-benchmark-") as name:
        folder = Path(name, "in")
        folder.mkdir()
        for number in range(_FILES):
            (folder / f"{number:06}.bin").write_bytes(os.urandom(_BYTES))
        with s3_server(Path(name)) as server, delayed(server, options.latency) as port:
            upload_inputs(server, _FILES, _BYTES)
            settings = environment(Path(name, "prefect"))
            settings["AWS_ENDPOINT_URL"] = at_port(port)["endpoint_url"]
            for turn in range(options.rounds + 1):
                for place, inputs, outputs in (
                    ("folder", str(folder), name),
                    ("bucket", f"s3://{BUCKET}/in", f"s3://{BUCKET}"),
                ):
                    found[place].append(run(inputs, f"{outputs}/out{turn}", settings))
    print(
        f"| dataset and inputs ({SERVER}) | before the first input, s | after the last input, s |"
    )
    print("|---|---|---|")
    for place, rounds in found.items():
        # The first round creates Prefect's database, and warms the disk cache.
        starts, ends = zip(*rounds[1:], strict=True)
        print(f"| {place} | {statistics.median(starts):.1f} | {statistics.median(ends):.1f} |")


if __name__ == "__main__":
    main()
