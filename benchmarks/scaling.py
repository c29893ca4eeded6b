"""How much faster more cores, and more machines, make a run.

python -m benchmarks.scaling [--rounds 3]

Cores: a step that keeps a core busy for 20 ms an input, with one DataLoader worker and with two, in
one shard; a bare DataLoader with one and with two, for what the machine itself gives: two cores may
be two threads of one. Machines: a step that sleeps for 50 ms, a thousand inputs for each of four
nodes of one core, simulated on this machine; the ideal is 50 s. Of runs, the time from the first
input's start to the last one's end counts.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

from benchmarks.memory import prefect_server
from benchmarks.overhead import Items, busy, plain_seconds
from benchmarks.peers.results import loop_seconds
from benchmarks.startup import environment

BUSY_SECONDS, BUSY_INPUTS = 0.02, 1000
SLEEP_SECONDS, INPUTS_PER_NODE, NODES = 0.05, 1000, 4


def works(source: Path) -> None:  # noqa: ARG001
    """Keep the core busy."""
    busy(BUSY_SECONDS)


def sleeps(source: Path) -> None:  # noqa: ARG001
    """Wait, as for a network."""
    time.sleep(SLEEP_SECONDS)


def make_inputs(folder: Path, count: int) -> None:
    """Write so many tiny files."""
    folder.mkdir()
    for number in range(count):
        (folder / f"{number}.txt").write_text("x")


def run(folder: Path, step: str, settings: dict[str, str], *options: str) -> float:
    """Run over the inputs; return the seconds of the loop."""
    out = tempfile.mkdtemp(dir=folder)
    command = [sys.executable, "-m", "batchmill", "run", str(folder / "in"), "--output", out]
    command += ["--step", f"benchmarks.scaling:{step}", *options]
    subprocess.run(
        command, env=settings, cwd=Path(__file__).parents[1], check=True, capture_output=True
    )
    return loop_seconds(Path(out))


def by_cores(rounds: int) -> None:
    """Print what a second core gives."""
    items = Items(lambda _: busy(BUSY_SECONDS), BUSY_INPUTS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_inputs(folder / "in", BUSY_INPUTS)
        settings = environment(folder / "prefect")
        seen: dict[str, list[float]] = {}
        for _ in range(rounds):
            for workers in (1, 2):
                plain = plain_seconds(items, batch_size=1, num_workers=workers)
                seen.setdefault(f"DataLoader {workers}", []).append(plain)
                options = ("--num-workers", str(workers), "--shard-resource", "num_cpus=2")
                ours = run(folder, "works", settings, *options)
                seen.setdefault(f"batchmill {workers}", []).append(ours)
    print("| | one worker, s | two, s | faster by |\n|---|---|---|---|")
    for who in ("DataLoader", "batchmill"):
        one, two = (statistics.median(seen[f"{who} {workers}"]) for workers in (1, 2))
        print(f"| {who} | {one:.1f} | {two:.1f} | {one / two:.2f} |")


def by_nodes(rounds: int) -> None:
    """Print what four nodes give."""
    with tempfile.TemporaryDirectory() as name, prefect_server(Path(name, "prefect")) as (_, env):
        folder = Path(name)
        make_inputs(folder / "in", INPUTS_PER_NODE * NODES)
        settings = env | {"RAY_AUTH_MODE": "disabled"}
        cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        try:
            for _ in range(NODES):
                cluster.add_node(num_cpus=1)
            seconds = [
                run(folder, "sleeps", settings, "--ray", cluster.address, "--num-workers", "1")
                for _ in range(rounds)
            ]
        finally:
            cluster.shutdown()
    ideal = SLEEP_SECONDS * INPUTS_PER_NODE
    median = statistics.median(seconds)
    print(f"\n| {NODES} nodes, {INPUTS_PER_NODE:,} inputs of 50 ms each | s |\n|---|---|")
    print(f"| ideal | {ideal:.1f} |\n| batchmill | {median:.1f} |")
    print(f"| of the ideal | {ideal / median:.2f} |")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    by_cores(options.rounds)
    by_nodes(options.rounds)


if __name__ == "__main__":
    main()
