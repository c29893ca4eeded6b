"""Measure the shortest run, as a multiple of `python -c "import torch, prefect"`.

    python -m benchmarks.startup [--rounds 5]

The run is `batchmill run` over four words, from the command to its end: without a Prefect server,
with a running server, beside `batchmill ui`, with a local Ray, and with nothing to do. The second
run of one Python process is measured, too. Rounds alternate. Medians of the seconds are printed,
and medians of the ratios within each round. Disk and database are warm. A second table shows each
process of one run: when it starts and ends, and the processor seconds that it uses. Processes that
use none are left out, except DataLoader workers.
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.scale import prefect_server

IMPORTS = [sys.executable, "-c", "import torch, prefect"]
POLL_SECONDS = 0.02
WORKER, IDLE_SECONDS = "DataLoader worker", 0.02


def environment(home: Path) -> dict[str, str]:
    """Return an environment without a Prefect server and without Ray's token."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    return kept | {"PREFECT_HOME": str(home), "RAY_AUTH_MODE": "disabled", "DO_NOT_TRACK": "1"}


def seconds_of(command: list[str], settings: dict[str, str], folder: Path) -> float:
    """Return the seconds of a command, from its start to its end."""
    begun = time.perf_counter()
    subprocess.run(command, env=settings, cwd=folder, check=True, capture_output=True)
    return time.perf_counter() - begun


def run_to(output: str, *options: str) -> list[str]:
    """Return the command that runs the job."""
    job = ["run", "words", "--step", "batchmill.steps.words:split", "--output", output]
    return [sys.executable, "-m", "batchmill", *job, *options]


def new_output(folder: Path) -> str:
    """Return the path of a dataset that does not exist."""
    return f"{tempfile.mkdtemp(dir=folder)}/out"


class FileStat(NamedTuple):
    """A process of a run: its name, its start and end, and its processor time in seconds."""

    name: str
    start: float
    end: float
    cpu: float


def processes_of(command: list[str], settings: dict[str, str], folder: Path) -> list[FileStat]:
    """Run a command, and sample its processes every 20 ms."""
    begun = time.time()
    seen: dict[psutil.Process, FileStat] = {}
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, env=settings, cwd=folder, stdout=quiet, stderr=quiet) as run:
        whole = psutil.Process(run.pid)
        while run.poll() is None:
            for process in [whole, *whole.children(recursive=True)]:
                try:
                    used = process.cpu_times()
                    name = name_of(process)
                    start = process.create_time() - begun
                except psutil.Error:
                    continue  # The process has just ended.
                now = time.time() - begun
                seen[process] = FileStat(name, max(0.0, start), now, used.user + used.system)
            time.sleep(POLL_SECONDS)
    return sorted(seen.values(), key=lambda process: process.start)


def name_of(process: psutil.Process) -> str:
    """Return the name of a process in the table."""
    command = process.cmdline()
    if process.name().startswith("pt_data_worker"):
        return WORKER
    for module, name in (
        ("batchmill.orchestration.server.server_process", "Prefect server"),
        ("batchmill.runs.shards.process", "process of the shard"),
        ("batchmill", "`batchmill run`"),
    ):
        if module in command:
            return name
    return Path(command[0]).name if command else str(process.name())


SECOND_RUN = """
import sys, tempfile, time, batchmill
sys.ps1 = ">>> "
def run():
    begun = time.perf_counter()
    batchmill.run("words", "batchmill.steps.words:split", tempfile.mkdtemp(dir=".") + "/out")
    return time.perf_counter() - begun
run()
time.sleep(3)
print(run())
"""


def second_run(settings: dict[str, str], folder: Path) -> float:
    """Return the seconds of the second run in an interactive Python, three seconds later."""
    command = [sys.executable, "-c", SECOND_RUN]
    done = subprocess.run(command, env=settings, cwd=folder, check=True, capture_output=True)
    return float(done.stdout)


@contextmanager
def showing_ui(settings: dict[str, str], folder: Path) -> Iterator[None]:
    """Run `batchmill ui` during the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, "-m", "batchmill", "ui", "--port", port]
    with subprocess.Popen(
        command, env=settings, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as ui:
        assert ui.stdout is not None
        ui.stdout.readline()  # Its address: the server is ready.
        try:
            yield
        finally:
            ui.terminate()


def measure(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Time the imports and the runs, in turn."""
    alone, shown = environment(folder / "prefect"), environment(folder / "shown")
    done = new_output(folder)
    with prefect_server(folder / "kept") as (_, variables), showing_ui(shown, folder):
        served = environment(folder / "kept") | variables
        for settings in (alone, served, shown):  # Creates the database, and warms the disk cache.
            seconds_of(run_to(new_output(folder)), settings, folder)
        seconds_of(run_to(done), alone, folder)
        found: dict[str, list[float]] = {}
        for _ in range(rounds):
            for what, command, settings in (
                ('`python -c "import torch, prefect"`', IMPORTS, alone),
                ("no Prefect server runs", run_to(new_output(folder)), alone),
                ("a Prefect server runs", run_to(new_output(folder)), served),
                ("`batchmill ui` runs", run_to(new_output(folder)), shown),
                ("nothing to do", run_to(done), alone),
                ("`--ray local`", run_to(new_output(folder), "--ray", "local"), alone),
            ):
                found.setdefault(what, []).append(seconds_of(command, settings, folder))
            found.setdefault("second run in a notebook", []).append(second_run(alone, folder))
    return found


def main() -> None:
    """Print two tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "words").mkdir()
        for word in ("one", "two", "three", "four"):
            (folder / "words" / f"{word}.txt").write_text(word)
        found = measure(folder, options.rounds)
        settings = environment(folder / "prefect")
        processes = processes_of(run_to(new_output(folder)), settings, folder)
    imports, *_ = found.values()
    print("| | s | times the imports |\n|---|---|---|")
    for what, seconds in found.items():
        median = statistics.median(seconds)
        ratios = [one / alone for one, alone in zip(seconds, imports, strict=True)]
        print(f"| {what} | {median:.1f} | {statistics.median(ratios):.2f} |")
    print("\n| process | starts, s | ends, s | processor seconds |\n|---|---|---|---|")
    for process in processes:
        if process.cpu > IDLE_SECONDS or process.name == WORKER:
            cells = f"{process.start:.1f} | {process.end:.1f} | {process.cpu:.1f}"
            print(f"| {process.name} | {cells} |")


if __name__ == "__main__":
    main()
