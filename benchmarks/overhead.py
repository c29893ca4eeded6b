"""Measure the overhead of batchmill per input, compared with a plain torch DataLoader.

python -m benchmarks.overhead [--inputs 4000] [--rounds 5]

The first table compares IsolatedExecutor with a DataLoader that runs the same function. The second
compares a whole shard, from its plan to its last ledger part, with a torch Dataset that only does
the work of the step. Both sides have two workers and the same batch size. The start and the end of
workers are included, Prefect and Ray are not. The third compares reading outputs that are files
with reading them from packs. Rounds alternate, and medians are printed.
"""

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from batchmill import SampleDataset, open_dataset
from batchmill.core.options.job_options import ExecutionOptions, JobSettings
from batchmill.core.outcome import Outcome
from batchmill.core.planning.batching import Cores, plan_shards
from batchmill.core.planning.job import make_job
from batchmill.core.planning.prepare import prepare
from batchmill.core.planning.run_spec import write_run_plan
from batchmill.runs.execute import InThisProcess, execute
from batchmill.runs.shards.run_shard import run_shard
from batchmill.runs.shards.shard import Shard
from batchmill.runs.workers.isolated_executor import IsolatedExecutor
from batchmill.runs.workers.watchdog import Limits

BATCH_SIZE = 32
WORKERS = 2
# An empty input takes microseconds, so more of them are measured.
MORE = 10
# A baseline whose rounds differ by more than a fifth is measured again, at most three times.
STEADY = 1.2
TRIES = 3


def busy(seconds: float) -> None:
    """Work until the thread has used `seconds` of processor time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def tiny(source: Path) -> dict[str, Any]:
    """Read a word, which is the smallest possible work."""
    return {"length": len(source.read_text())}


def five_milliseconds(source: Path) -> dict[str, Any]:
    """Read a word, and keep the core busy for 5 ms."""
    busy(0.005)
    return {"length": len(source.read_text())}


def writes(source: Path, out: Path) -> dict[str, Any]:
    """Read a word, and write it to a file."""
    (out / "word.txt").write_text(source.read_text())
    return {"output": "word.txt"}


class Items:
    """A map-style torch Dataset whose items are the results of a function of the index."""

    def __init__(self, make: Callable[[int], Any], count: int) -> None:
        self.make, self.count = make, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def plain_seconds(items: Items, batch_size: int = BATCH_SIZE, num_workers: int = WORKERS) -> float:
    """Time a bare DataLoader over all items."""
    begun = time.perf_counter()
    loader: DataLoader[Any] = DataLoader(
        items,  # type: ignore[arg-type]
        batch_size=batch_size,
        num_workers=num_workers,
        collate_fn=list,
    )
    count = sum(len(batch) for batch in loader)
    if count != len(items):
        raise RuntimeError(f"the plain DataLoader returned {count} of {len(items)} results")
    return time.perf_counter() - begun


def outcome_of(index: int) -> Outcome:
    """Return the outcome of an input without work."""
    return Outcome(f"{index}.txt", f"{index}", "ok", 1, 0.0, time.time(), "here", '[{"length":4}]')


def busy_outcome(index: int) -> Outcome:
    """Return an outcome after 5 ms of work."""
    busy(0.005)
    return outcome_of(index)


def isolated_seconds(items: Items, batch_size: int = BATCH_SIZE) -> float:
    """Time IsolatedExecutor over all items."""
    counts: list[int] = []
    begun = time.perf_counter()
    IsolatedExecutor(
        count=len(items),
        run=items.make,
        lost=lambda index, _: outcome_of(index),
        deliver=lambda outcomes: counts.append(len(outcomes)),
        limits=Limits(timeout_seconds=3600),
        retries=1,
    ).execute(batch_size=batch_size, num_workers=WORKERS)
    if sum(counts) != len(items):
        raise RuntimeError(f"IsolatedExecutor returned {sum(counts)} of {len(items)} outcomes")
    return time.perf_counter() - begun


def plain_step(step: Callable[..., Any], paths: Sequence[Path], folder: Path) -> Items:
    """Return a torch Dataset that only does the step's work, without checks or records."""

    def make(index: int) -> Any:
        if step is not writes:
            return step(paths[index])
        out = folder / str(index)
        out.mkdir()
        return step(paths[index], out)

    return Items(make, len(paths))


def engine_seconds(
    step: str,
    inputs: Path,
    folder: Path,
    *,
    workers: int = WORKERS,
    confine: bool = False,
    pack: str = "",
) -> float:
    """Time one shard of all inputs, from its plan to the last committed part."""
    job = make_job(
        manifest=str(inputs),
        step=step,
        output=str(folder / "dataset"),
        options=JobSettings.from_flat({"confine": confine, "pack": pack}),
    )
    prepared = prepare(job)
    prepared.ledger.create()
    layout = plan_shards(
        prepared.plan.pending["size"].to_numpy(),
        ExecutionOptions(batch_size=BATCH_SIZE, num_workers=workers),
        Cores(total=workers, node=workers),
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


def steady(measure: Callable[[], tuple[float, float]], rounds: int) -> list[tuple[float, float]]:
    """Measure a baseline and batchmill in rounds. Returns no rounds if the baseline is not steady.

    It is measured again if its rounds differ by more than a fifth, at most three times.
    """
    for _ in range(TRIES):
        found = [measure() for _ in range(rounds)]
        plain = [seconds for seconds, _ in found]
        if max(plain) <= STEADY * min(plain):
            return found
    return []


def report(name: str, batch_size: int, count: int, rounds: Sequence[tuple[float, float]]) -> None:
    """Print a table row: microseconds per input, and the ratio of the medians."""
    if not rounds:
        print(f"| {name} | {batch_size} | not steady | | |", flush=True)
        return
    plain, ours = (
        statistics.median(seconds) * 1e6 / count for seconds in zip(*rounds, strict=True)
    )
    print(
        f"| {name} | {batch_size} | {plain:,.1f} | {ours:,.1f} | {ours / plain:.2f} |", flush=True
    )


def compare_loaders(inputs: int, rounds: int) -> None:
    """Print the table of IsolatedExecutor."""
    print("| isolation | batch | DataLoader, us | batchmill, us | ratio |")
    print("|---|---|---|---|---|")
    for name, make, batch_size, count in (
        ("5 ms of work", busy_outcome, BATCH_SIZE, inputs),
        ("nothing", outcome_of, 1, inputs * MORE // 2),
        ("nothing", outcome_of, 8, inputs * MORE),
        ("nothing", outcome_of, BATCH_SIZE, inputs * MORE),
    ):
        items = Items(make, count)
        both = partial(_both_loaders, items, batch_size)
        report(name, batch_size, count, steady(both, rounds))


def _both_loaders(items: Items, batch_size: int) -> tuple[float, float]:
    return plain_seconds(items, batch_size), isolated_seconds(items, batch_size)


def compare_engines(inputs: int, rounds: int) -> None:
    """Print the table of whole shards."""
    print("| engine | batch | DataLoader, us | batchmill, us | ratio |")
    print("|---|---|---|---|---|")
    for title, step, confine, pack in (
        ("5 ms of work", five_milliseconds, False, ""),
        ("reads a file of 4 bytes", tiny, False, ""),
        ("reads one file, writes another", writes, False, ""),
        ("reads one file, writes into a pack", writes, False, "256MB"),
        ("reads a file of 4 bytes, confined", tiny, True, ""),
        ("reads one file, writes another, confined", writes, True, ""),
    ):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name, "inputs")
            folder.mkdir()
            for number in range(inputs):
                (folder / f"{number}.txt").write_text("word")
            paths = sorted(folder.iterdir())
            both = partial(_both_engines, step, paths, confine=confine, pack=pack)
            report(title, BATCH_SIZE, inputs, steady(both, rounds))


def _both_engines(
    step: Callable[..., Any], paths: Sequence[Path], *, confine: bool, pack: str
) -> tuple[float, float]:
    inputs = paths[0].parent
    place = Path(tempfile.mkdtemp(dir=inputs.parent))
    (place / "plain").mkdir()
    plain = plain_seconds(plain_step(step, paths, place / "plain"))
    ref = f"benchmarks.overhead:{step.__name__}"
    return plain, engine_seconds(ref, inputs, place, confine=confine, pack=pack)


def compare_readers(inputs: int, rounds: int) -> None:
    """Print the table of random reads through `open_dataset`, of files in the page cache."""
    print("| random reads, 1 kB | files, us | packs, us | ratio |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "inputs")
        folder.mkdir()
        for number in range(inputs):
            (folder / f"{number}.txt").write_text("word" * 256)
        datasets = []
        for pack in ("", "256MB"):
            job = make_job(
                manifest=str(folder),
                step="benchmarks.overhead:writes",
                output=f"{name}/dataset-{pack}",
                options=JobSettings.from_flat({"pack": pack}),
            )
            execute(prepare(job), InThisProcess(cores=WORKERS))
            datasets.append(open_dataset(job.output, load="bytes"))
        order = list(range(inputs))
        random.Random(1).shuffle(order)
        seconds = [tuple(reading_seconds(one, order) for one in datasets) for _ in range(rounds)]
        files, packs = (
            statistics.median(column) * 1e6 / inputs for column in zip(*seconds, strict=True)
        )
        print(f"| `open_dataset` | {files:,.1f} | {packs:,.1f} | {files / packs:.2f} |", flush=True)


def reading_seconds(dataset: SampleDataset, order: Sequence[int]) -> float:
    """Time the reading of samples in an order."""
    begun = time.perf_counter()
    for index in order:
        dataset[index]
    return time.perf_counter() - begun


def main() -> None:
    """Print the tables, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(f"{WORKERS} workers, {os.cpu_count()} cores, median of {options.rounds} rounds\n")
    compare_loaders(options.inputs, options.rounds)
    print()
    compare_engines(options.inputs, options.rounds)
    print()
    compare_readers(options.inputs, options.rounds)


if __name__ == "__main__":
    main()
