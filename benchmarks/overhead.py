"""What batchmill's engine costs an input, against a plain torch DataLoader on the same work.

python -m benchmarks.overhead [--inputs 4000] [--rounds 5]

Both use two workers and the same batch size, in this process; start-up of workers is included in
both, Prefect and Ray in neither. Cases alternate, and the median of the rounds counts.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from batchmill.batching import Batching, Cores, lay_out
from batchmill.job import make_job, prepare
from batchmill.plan_file import write_run_plan
from batchmill.shard import Shard, run_shard

BATCH_SIZE = 32
WORKERS = 2


def tiny(source: Path) -> dict[str, Any]:
    """Read a word: the least that a step can do with a file."""
    return {"length": len(source.read_text())}


def five_milliseconds(source: Path) -> dict[str, Any]:
    """Read a word, and keep the core busy for 5 ms."""
    end = time.perf_counter() + 0.005
    while time.perf_counter() < end:
        pass
    return {"length": len(source.read_text())}


def writes(source: Path, out: Path) -> dict[str, Any]:
    """Read a word, and write it to a file of its own."""
    (out / "word.txt").write_text(source.read_text())
    return {"output": "word.txt"}


class Plain:
    """The same work as a map-style Dataset; it writes where a careless author would."""

    def __init__(self, step: Callable[..., Any], paths: list[Path], folder: Path) -> None:
        self.step, self.paths, self.folder = step, paths, folder

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        if self.step is not writes:
            return self.step(self.paths[index])
        out = self.folder / str(index)
        out.mkdir()
        return self.step(self.paths[index], out)


def plain_seconds(step: Callable[..., Any], inputs: Path, folder: Path) -> float:
    """Time a bare DataLoader over all inputs."""
    paths = sorted(inputs.iterdir())
    begun = time.perf_counter()
    loader: DataLoader[Any] = DataLoader(
        Plain(step, paths, folder),  # type: ignore[arg-type]
        batch_size=BATCH_SIZE,
        num_workers=WORKERS,
        collate_fn=list,
    )
    count = sum(len(batch) for batch in loader)
    if count != len(paths):
        raise RuntimeError(f"the plain DataLoader gave {count} of {len(paths)} results")
    return time.perf_counter() - begun


def engine_seconds(step: Callable[..., Any], inputs: Path, folder: Path) -> float:
    """Time one shard of all inputs, from its plan to the last committed part."""
    job = make_job(
        manifest=str(inputs),
        step=f"benchmarks.overhead:{step.__name__}",
        output=str(folder / "dataset"),
    )
    prepared = prepare(job)
    prepared.ledger.create()
    layout = lay_out(
        prepared.plan.pending["size"].to_numpy(),
        Batching(batch_size=BATCH_SIZE, num_workers=WORKERS),
        Cores(total=WORKERS, node=WORKERS),
    )
    write_run_plan(prepared, 1, layout)
    count = layout.bounds[-1]
    shard = Shard(dataset=job.output, run=1, number=1, total=1, start=0, stop=count)
    begun = time.perf_counter()
    result = run_shard(shard)
    seconds = time.perf_counter() - begun
    if result.outcomes != {"ok": count}:
        raise RuntimeError(f"not every input is ok: {result.outcomes}")
    return seconds


def main() -> None:
    """Print a table: milliseconds an input, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(f"{options.inputs} inputs, {WORKERS} workers, batches of {BATCH_SIZE}, median of")
    print(f"{options.rounds} alternating rounds, {os.cpu_count()} cores; ms an input")
    print(f"{'work':20} {'DataLoader':>10} {'batchmill':>10} {'ratio':>7}")
    for step in (tiny, writes, five_milliseconds):
        with tempfile.TemporaryDirectory() as name:
            inputs = Path(name, "inputs")
            inputs.mkdir()
            for number in range(options.inputs):
                (inputs / f"{number}.txt").write_text("word")
            rounds = []
            for number in range(options.rounds):
                folder = Path(name, str(number))
                (folder / "plain").mkdir(parents=True)
                rounds.append(
                    (
                        plain_seconds(step, inputs, folder / "plain"),
                        engine_seconds(step, inputs, folder),
                    )
                )
            plain, engine = (
                statistics.median(seconds) * 1000 / options.inputs
                for seconds in zip(*rounds, strict=True)
            )
            print(f"{step.__name__:20} {plain:10.3f} {engine:10.3f} {engine / plain:7.2f}")


if __name__ == "__main__":
    main()
