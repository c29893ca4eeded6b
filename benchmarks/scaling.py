"""Measure how a run speeds up with more cores and more nodes.

python -m benchmarks.scaling [--rounds 3]

Cores: a step keeps a core busy for 20 ms per input, in one shard with one or two DataLoader
workers. A bare DataLoader shows the speed-up that the machine allows, because two cores may be two
threads of one core.

Nodes: a step sleeps for 50 ms. There are 1,000 inputs for each of four simulated nodes with one
core each, so the ideal time is 50 s.

The time of a run is from the start of its first input to the end of its last one.
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

from benchmarks.overhead import Items, busy, engine_seconds, plain_seconds
from benchmarks.peers.results import loop_seconds
from benchmarks.scale import prefect_server

BUSY_SECONDS, BUSY_INPUTS = 0.02, 1000
SLEEP_SECONDS, INPUTS_PER_NODE, NODES = 0.05, 1000, 4


def works(source: Path) -> None:  # noqa: ARG001
    """Keep a core busy."""
    busy(BUSY_SECONDS)


def sleeps(source: Path) -> None:  # noqa: ARG001
    """Sleep, as a step does that waits for a network."""
    time.sleep(SLEEP_SECONDS)


def make_inputs(folder: Path, count: int) -> None:
    """Write `count` tiny files."""
    folder.mkdir()
    for number in range(count):
        (folder / f"{number}.txt").write_text("x")


def run(folder: Path, step: str, settings: dict[str, str], *options: str) -> float:
    """Run over the inputs, and return the seconds of the loop."""
    out = tempfile.mkdtemp(dir=folder)
    command = [sys.executable, "-m", "batchmill", "run", str(folder / "in"), "--output", out]
    command += ["--step", f"benchmarks.scaling:{step}", *options]
    subprocess.run(
        command, env=settings, cwd=Path(__file__).parents[1], check=True, capture_output=True
    )
    return loop_seconds(Path(out))


def by_cores(rounds: int) -> None:
    """Print the speed-up by a second core."""
    items = Items(lambda _: busy(BUSY_SECONDS), BUSY_INPUTS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_inputs(folder / "in", BUSY_INPUTS)
        seen: dict[str, list[float]] = {}
        for _ in range(rounds):
            for workers in (1, 2):
                plain = plain_seconds(items, batch_size=1, num_workers=workers)
                seen.setdefault(f"DataLoader {workers}", []).append(plain)
                place = Path(tempfile.mkdtemp(dir=folder))
                ours = engine_seconds(
                    "benchmarks.scaling:works", folder / "in", place, workers=workers
                )
                seen.setdefault(f"batchmill {workers}", []).append(ours)
    print("| | one worker, s | two workers, s | speed-up |\n|---|---|---|---|")
    for who in ("DataLoader", "batchmill"):
        one, two = (statistics.median(seen[f"{who} {workers}"]) for workers in (1, 2))
        print(f"| {who} | {one:.1f} | {two:.1f} | {one / two:.2f} |")


def by_nodes(rounds: int) -> None:
    """Print the time on four nodes."""
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
    print(f"| ideal divided by batchmill | {ideal / median:.2f} |")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    by_cores(options.rounds)
    by_nodes(options.rounds)


if __name__ == "__main__":
    main()
