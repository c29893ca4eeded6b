"""Measure the time and the memory of commands over many inputs.

python -m benchmarks.scale [--inputs 100000 1000000]

The inputs are hard links of one small file in folders of 10,000, and each gives a row. So ten
million need 10 GB of names and rows, and about half an hour. The runs use a new Prefect server.

For each command: the seconds, the peak of the memory that its processes need, and the peak of their
resident memory. The latter counts the pages of temporary files that the kernel has in memory, and
that it can drop at any time.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil

LOOK_SECONDS = 0.2
START_SECONDS = 180
PER_FOLDER = 10_000
NEW = 1000
STEP = "def step(source):\n    return {'letters': 4}\n"
CHANGED_STEP = "def step(source):\n    return {'letters': 2 + 2}\n"
FIRST_SAMPLE = """
import sys, torch, batchmill
dataset = batchmill.open_dataset("out", load=lambda path: None)
loader = torch.utils.data.DataLoader(dataset, num_workers=8, batch_size=None, shuffle=True)
next(iter(loader))
"""


class Cost(NamedTuple):
    """The seconds of a command, and the peaks of its largest process in MiB."""

    seconds: float
    needed: int
    resident: int


def make_inputs(folder: Path, count: int) -> None:
    """Create files that are links of one file in each folder."""
    for start in range(0, count, PER_FOLDER):
        inside = folder / f"{start // PER_FOLDER:05d}"
        inside.mkdir(parents=True)
        first = inside / f"{start:08d}.txt"
        first.write_text("word")
        for number in range(start + 1, min(count, start + PER_FOLDER)):
            os.link(first, inside / f"{number:08d}.txt")


def commands(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the arguments of each command, in the order of their execution."""
    batchmill = [sys.executable, "-m", "batchmill"]
    job = ["in", "--step", "letters:step", "--output", "out"]
    yield "plan", [*batchmill, "plan", *job]
    yield "first run", [*batchmill, "run", *job]
    yield "unchanged run", [*batchmill, "run", *job]
    for number in range(NEW):
        path = folder / "in" / "new" / f"{number}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text("new")
    yield f"run with {NEW:,} new inputs", [*batchmill, "run", *job]
    for name in ("status", "failures", "retry", "verify", "versions", "report"):
        yield name, [*batchmill, name, "out"]
    # The second run changed nothing.
    yield "diff", [*batchmill, "diff", "out", "1", "3"]
    yield "run --sample 1000", [*batchmill, "run", *job[:-1], "sampled", "--sample", "1000"]
    (folder / "letters.py").write_text(CHANGED_STEP)
    yield "run --verify-change 300", [*batchmill, "run", *job, "--verify-change", "300"]
    yield "first sample, 8 workers", [sys.executable, "-c", FIRST_SAMPLE]


def cost_of(command: list[str], folder: Path, settings: dict[str, str]) -> Cost:
    """Execute a command, and measure it."""
    needed = resident = 0.0
    begun = time.monotonic()
    with psutil.Popen(
        command, cwd=folder, env=settings, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        while process.poll() is None:
            with suppress(psutil.NoSuchProcess):
                for one in [process, *process.children(recursive=True)]:
                    found = one.memory_info()
                    needed = max(needed, found.rss - _mapped_bytes(one.pid))
                    resident = max(resident, found.rss)
            time.sleep(LOOK_SECONDS)
        seconds = time.monotonic() - begun
        if process.returncode:
            raise SystemExit(f"{command} ended with {process.returncode}:\n{process.stderr.read()}")
    return Cost(seconds, round(needed / 2**20), round(resident / 2**20))


def _mapped_bytes(pid: int) -> int:
    """Return the resident pages of a process that belong to files."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssFile:"):
                return int(line.split()[1]) * 1024
    return 0


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def prefect_server(folder: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Run a server with an empty database. Yields its pid and the environment of its clients."""
    port = free_port()
    environment = os.environ | {"PREFECT_HOME": str(folder), "PREFECT_LOGGING_LEVEL": "ERROR"}
    environment |= {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    command = [sys.executable, "-m", "prefect", "server", "start", "--port", str(port)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as server:
        url = f"http://127.0.0.1:{port}/api"
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            with suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
                break
            time.sleep(LOOK_SECONDS)
        try:
            yield server.pid, environment | {"PREFECT_API_URL": url}
        finally:
            server.terminate()


def measure(count: int, folder: Path) -> Iterator[tuple[str, Cost]]:
    """Execute all commands over `count` inputs. Yields the name and the cost of each."""
    make_inputs(folder / "in", count)
    (folder / "letters.py").write_text(STEP)
    with prefect_server(folder / "prefect") as (_, settings):
        for name, command in commands(folder):
            yield name, cost_of(command, folder, settings)


def main() -> None:
    """Print a table for each number of inputs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, nargs="+", default=[100_000, 1_000_000])
    for count in parser.parse_args().inputs:
        print(f"| {count:,} inputs | seconds | needed memory, MiB | resident memory, MiB |")
        print("|---|---|---|---|")
        with tempfile.TemporaryDirectory() as name:
            for command, cost in measure(count, Path(name)):
                print(
                    f"| {command} | {cost.seconds:,.1f} | {cost.needed:,} | {cost.resident:,} |",
                    flush=True,
                )
        print()


if __name__ == "__main__":
    main()
