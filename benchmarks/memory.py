"""Measure the memory of the processes of a run, by the number of inputs.

python -m benchmarks.memory [--inputs 1000 10000 100000]

Each number has a new Prefect server and one `batchmill run` on this machine, over that number of
files of four bytes. Peaks are of resident memory, sampled every half second.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from batchmill.ledger.ledger import Ledger
from batchmill.storage import open_store

LOOK_SECONDS = 0.5
START_SECONDS = 180
STEP = "def step(source):\n    return {'letters': len(source.read_text())}\n"


class Peaks(threading.Thread):
    """A thread that samples the memory of processes. `mib` has the peak of each kind."""

    def __init__(self, driver: int, server: int) -> None:
        super().__init__(daemon=True)
        self.mib: Counter[str] = Counter()
        self._driver, self._server = driver, server
        self._over = threading.Event()

    def run(self) -> None:
        """Sample until `stop` is called."""
        while not self._over.wait(LOOK_SECONDS):
            with suppress(psutil.NoSuchProcess):
                self._look()

    def stop(self) -> None:
        """Stop sampling."""
        self._over.set()
        self.join()

    def _look(self) -> None:
        self._note("driver", mib(psutil.Process(self._driver)))
        server = psutil.Process(self._server)
        self._note("server", sum(map(mib, [server, *server.children(recursive=True)])))
        for process in psutil.Process(self._driver).children():
            if "batchmill.shards.process" in process.cmdline():
                self._note("shard", mib(process))

    def _note(self, kind: str, found: float) -> None:
        self.mib[kind] = max(self.mib[kind], round(found))


def mib(process: psutil.Process) -> float:
    """Return the resident memory of a process in MiB."""
    return float(process.memory_info().rss) / 2**20


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


def measure(count: int, folder: Path) -> dict[str, float]:
    """Run over `count` inputs. Returns peaks in MiB, seconds and the number of task runs."""
    inputs = folder / "in"
    for number in range(count):
        path = inputs / f"{number // 1000:04d}" / f"{number:07d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("word")
    (folder / "letters.py").write_text(STEP)
    job = ["run", "in", "--step", "letters:step", "--output", "out"]
    with prefect_server(folder / "prefect") as (server, environment):
        begun = time.monotonic()
        with subprocess.Popen(
            [sys.executable, "-m", "batchmill", *job],
            cwd=folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as driver:
            peaks = Peaks(driver.pid, server)
            peaks.start()
            driver.wait()
            peaks.stop()
        seconds = time.monotonic() - begun
    if driver.returncode:
        raise SystemExit(f"the run over {count} inputs ended with {driver.returncode}")
    summary = Ledger(open_store(str(folder / "out"))).read_summary(1) or {}
    return {**peaks.mib, "seconds": seconds, "task_runs": summary["task_runs"]}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    options = parser.parse_args()
    print("| inputs | driver, MiB | server, MiB | process of a shard, MiB | shards | seconds |")
    print("|---|---|---|---|---|---|")
    for count in options.inputs:
        with tempfile.TemporaryDirectory() as name:
            found = measure(count, Path(name))
        columns = [found[name] for name in ("driver", "server", "shard", "task_runs", "seconds")]
        print(f"| {count:,} | " + " | ".join(f"{value:,.0f}" for value in columns) + " |")


if __name__ == "__main__":
    main()
