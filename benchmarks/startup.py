"""How long the shortest run takes, against what it cannot do without, one after the other.

python -m benchmarks.startup [--rounds 5]

The run: `batchmill run` over four words, with a Prefect server and a Ray of its own, from the
command to its end. What it cannot do without: to import torch, Prefect and Ray; `ray.init()`; a
Prefect server from its command until it answers. Rounds alternate, and the medians count; disk and
database are warm. After that, the same run where a Prefect server is there already, and then where
a Ray cluster is, too.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from ray.cluster_utils import Cluster

from benchmarks.memory import free_port, prefect_server

STEP = "batchmill.steps.words:split"
IMPORTS = "import torch, prefect, ray"
RAY = """
import time, ray
begun = time.perf_counter()
ray.init(address="local", num_cpus={cores}, log_to_driver=False, logging_level="ERROR")
print(time.perf_counter() - begun)
ray.shutdown()
"""
POLL_SECONDS = 0.05


def environment(home: Path) -> dict[str, str]:
    """Return an environment in which Prefect is alone, and Ray asks for no token."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    return kept | {"PREFECT_HOME": str(home), "RAY_AUTH_MODE": "disabled", "DO_NOT_TRACK": "1"}


def seconds_of(command: list[str], settings: dict[str, str], folder: Path) -> float:
    """Time a command, from its start to its end."""
    begun = time.perf_counter()
    subprocess.run(command, env=settings, cwd=folder, check=True, capture_output=True)
    return time.perf_counter() - begun


def imports(settings: dict[str, str], folder: Path) -> float:
    """Time the imports; starting Python itself is not counted."""
    bare = seconds_of([sys.executable, "-c", "pass"], settings, folder)
    return seconds_of([sys.executable, "-c", IMPORTS], settings, folder) - bare


def ray_init(settings: dict[str, str], folder: Path) -> float:
    """Time `ray.init()`."""
    code = RAY.format(cores=os.cpu_count())
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=settings,
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout.split()[-1])


@contextmanager
def server(settings: dict[str, str], port: int) -> Iterator[None]:
    """Run a Prefect server."""
    command = [sys.executable, "-m", "prefect", "server", "start", "--port", str(port)]
    with subprocess.Popen(
        command, env=settings, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield
        finally:
            process.terminate()


def server_start(settings: dict[str, str], _: Path) -> float:
    """Time a Prefect server until it answers."""
    port = free_port()
    begun = time.perf_counter()
    with server(settings, port):
        while True:
            with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/api/health", timeout=5):
                return time.perf_counter() - begun
            time.sleep(POLL_SECONDS)


def whole_run(settings: dict[str, str], folder: Path, *options: str) -> float:
    """Time a run over four words."""
    out = tempfile.mkdtemp(dir=folder)
    command = [sys.executable, "-m", "batchmill", "run", "words", "--step", STEP, "--output", out]
    return seconds_of([*command, *options], settings, folder)


def with_services(folder: Path, rounds: int) -> dict[str, float]:
    """Time the run where a Prefect server is there already, and a Ray cluster; medians."""
    with prefect_server(folder / "kept") as (_, variables):
        settings = variables | {"RAY_AUTH_MODE": "disabled"}
        whole_run(settings, folder)
        server_only = [whole_run(settings, folder) for _ in range(rounds)]
        cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": os.cpu_count()})
        try:
            both = [whole_run(settings, folder, "--ray", cluster.address) for _ in range(rounds)]
        finally:
            cluster.shutdown()
    return {
        "the run, with a Prefect server that is there": statistics.median(server_only),
        "and with a Ray cluster that is there": statistics.median(both),
    }


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    parts = {
        "imports of torch, Prefect and Ray": imports,
        "`ray.init()`": ray_init,
        "a Prefect server's start": server_start,
        "`batchmill run` over four words": whole_run,
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "words").mkdir()
        for word in ("one", "two", "three", "four"):
            (folder / "words" / f"{word}.txt").write_text(word)
        settings = environment(folder / "prefect")
        whole_run(settings, folder)  # Makes the database, and warms the disk.
        rounds = [
            {what: measure(settings, folder) for what, measure in parts.items()}
            for _ in range(options.rounds)
        ]
        kept = with_services(folder, options.rounds)
    medians = {what: statistics.median(seen[what] for seen in rounds) for what in parts}
    *needed, ours = medians.values()
    print("| | s |\n|---|---|")
    for what, seconds in medians.items():
        print(f"| {what} | {seconds:.1f} |")
    print(f"| of the sum of the others | {ours / sum(needed):.2f} |")
    for what, seconds in kept.items():
        print(f"| {what} | {seconds:.1f} |")


if __name__ == "__main__":
    main()
