"""Compare exports, and readers of packs, with the libraries of the formats.

python -m benchmarks.export [--samples 10000] [--bytes 10000] [--rounds 2]

All contenders have the same samples and labels, in turn, on warm files. A sample is a file of
random bytes and a row. `webdataset` writes with `ShardWriter`, `huggingface` with
`Dataset.from_generator` and `to_parquet`, as their documentation shows. An epoch has two DataLoader
workers, batches of 64, and a random order (WebDataset: a buffer of 1,000 samples). Each figure is
the median of the rounds. The memory is the largest sum of the resident memory of all processes of
the export.
"""

import argparse
import json
import multiprocessing
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

# No library may use the network.
os.environ["HF_HUB_OFFLINE"] = "1"

import pandas as pd
import psutil
from torch.utils.data import DataLoader

import batchmill
from batchmill.core.options.job_options import ExecutionOptions, JobSettings
from batchmill.core.planning.job import make_job
from batchmill.core.planning.prepare import prepare
from batchmill.core.sizes import counted
from batchmill.runs.execute import InThisProcess, execute
from benchmarks.machine import describe

SHARD_BYTES = 16 * 2**20
PER_INPUT = 100
BATCH = 64
# The datasets that `make_datasets` writes, and what contains their samples.
SOURCES = {"loose": "files", "packed": "packs"}
_WATCH_SECONDS = 0.02


def write_samples(source: Path, out: Path, *, size: int = 0) -> Iterator[dict[str, Any]]:
    """Write files of random bytes, the same for the same input."""
    numbers = random.Random(source.name)
    for number in range(PER_INPUT):
        (out / f"{number:03}.bin").write_bytes(numbers.randbytes(size))
        yield {"output": f"{number:03}.bin", "label": f"class {number % 10}", "number": number}


def make_datasets(folder: Path, samples: int, size: int) -> None:
    """Write a dataset of files, `loose`, and one with the same samples in packs, `packed`."""
    (folder / "in").mkdir()
    for number in range(-(-samples // PER_INPUT)):
        (folder / "in" / f"{number:05}").touch()
    for name, pack in (("loose", ""), ("packed", "256MB")):
        execution = ExecutionOptions(pack=pack, num_workers=2)
        job = make_job(
            manifest=str(folder / "in"),
            step="benchmarks.export:write_samples",
            output=str(folder / name),
            params={"size": size},
            options=JobSettings(execution=execution),
        )
        execute(prepare(job), InThisProcess(cores=2))


def _rows(dataset: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    for row in pd.read_parquet(dataset / "metadata.parquet").to_dict("records"):
        yield (dataset / row["output"]).read_bytes(), {str(name): row[name] for name in row}


def export(folder: Path, out: Path, *, source: str, to: str, workers: int) -> None:
    """Write a dataset with batchmill."""
    batchmill.export(folder / source, out, to=to, shard_size=SHARD_BYTES, num_workers=workers)


def write_webdataset(folder: Path, out: Path) -> None:
    """Write the loose dataset with the loop that webdataset documents."""
    import webdataset

    out.mkdir()
    with webdataset.ShardWriter(f"{out}/%06d.tar", maxsize=SHARD_BYTES, verbose=0) as writer:
        for number, (data, row) in enumerate(_rows(folder / "loose")):
            writer.write({"__key__": f"{number:08}", "bin": data, "json": row})


def write_huggingface(folder: Path, out: Path) -> None:
    """Write the loose dataset as the documentation of datasets shows."""
    import datasets

    datasets.disable_progress_bars()
    out.mkdir()

    def rows() -> Iterator[dict[str, Any]]:
        return ({"file": data, **row} for data, row in _rows(folder / "loose"))

    with tempfile.TemporaryDirectory(dir=folder) as cache:
        made = datasets.Dataset.from_generator(rows, cache_dir=cache)
        made.to_parquet(out / "data.parquet")


def read_webdataset(folder: Path, shards: str) -> int:
    """Read all samples of tar files."""
    import webdataset

    urls = [str(path) for path in sorted((folder / shards).glob("*.tar"))]
    samples = webdataset.WebDataset(urls, shardshuffle=len(urls), seed=1)
    loader = DataLoader(
        samples.shuffle(1000, seed=1).map(_use), batch_size=BATCH, num_workers=2, collate_fn=len
    )
    return sum(loader)


def _use(sample: dict[str, Any]) -> tuple[bytes, Any]:
    return sample["bin"], json.loads(sample["json"])["label"]


def read_dataset(folder: Path, source: str) -> int:
    """Read all samples of a dataset of batchmill."""
    samples = batchmill.open_dataset(folder / source, load="bytes", columns=["number"])
    loader = DataLoader(samples, batch_size=BATCH, shuffle=True, num_workers=2, collate_fn=len)
    return sum(loader)


def read_huggingface(folder: Path, shards: str) -> int:
    """Read all samples of Parquet files."""
    import datasets

    datasets.disable_progress_bars()
    files = [str(path) for path in sorted((folder / shards).rglob("*.parquet"))]
    found = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
    return sum(1 for _ in found)


def _timed(work: Callable[..., Any], answers: Any) -> None:
    begun = time.perf_counter()
    result = work()
    answers.put((time.perf_counter() - begun, result))


def measure(work: Callable[..., Any]) -> tuple[float, float, Any]:
    """Call a function in a new process. Return its seconds, its peak of memory, its result."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=_timed, args=(work, answers))
    process.start()
    ended, peak = threading.Event(), [0]
    watcher = threading.Thread(target=_watch, args=(process.pid, ended, peak))
    watcher.start()
    try:
        seconds, result = answers.get(timeout=600)
    finally:
        ended.set()
        watcher.join()
        process.join()
    return seconds, peak[0] / 2**20, result


def _watch(pid: int, ended: threading.Event, peak: list[int]) -> None:
    whole = psutil.Process(pid)
    while not ended.wait(_WATCH_SECONDS):
        total = 0
        for process in (whole, *whole.children(recursive=True)):
            try:
                total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        peak[0] = max(peak[0], total)


def compare(
    what: str, folder: Path, contenders: dict[str, Callable[[Path], Any]], samples: int, rounds: int
) -> None:
    """Measure contenders in turn, and print a table. The last one is the standard."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    memory: dict[str, float] = dict.fromkeys(contenders, 0)
    for _ in range(rounds):
        for name, work in contenders.items():
            with tempfile.TemporaryDirectory(dir=folder) as place:
                took, peak, result = measure(partial(work, Path(place, "out")))
            assert result in (None, samples), f"{name}: {result} of {samples} samples"
            seconds[name].append(took)
            memory[name] = max(memory[name], peak)
    speeds = {name: samples / statistics.median(took) for name, took in seconds.items()}
    standard = list(speeds.values())[-1]
    print(f"\n| {what} | samples/s | ratio | memory, MiB |\n|---|---|---|---|")
    for name, speed in speeds.items():
        print(f"| {name} | {speed:,.0f} | {speed / standard:.2f} | {memory[name]:,.0f} |")


def _reader(read: Callable[[Path, str], int], folder: Path, source: str) -> Callable[[Path], int]:
    return partial(_ignoring_out, read, folder, source)


def _ignoring_out(read: Callable[[Path, str], int], folder: Path, source: str, _: Path) -> int:
    return read(folder, source)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print tables with samples per second, relative to the library, and memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--bytes", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args(arguments)
    count = -(-given.samples // PER_INPUT) * PER_INPUT
    if count * given.bytes < 2 * SHARD_BYTES:
        parser.error("give more samples or bytes: each of the two workers needs a shard")
    print(json.dumps(describe()))
    print(f"{count:,} samples of {given.bytes:,} bytes, {given.rounds} rounds")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_datasets(folder, count, given.bytes)
        run = partial(compare, folder=folder, samples=count, rounds=given.rounds)
        for to, write in (("webdataset", write_webdataset), ("huggingface", write_huggingface)):
            ours = {
                f"`batchmill export`, {SOURCES[source]}, {counted(workers, 'thread')}": partial(
                    export, folder, source=source, to=to, workers=workers
                )
                for source, workers in (("loose", 1), ("loose", 2), ("packed", 2))
            }
            run(f"write {to}", contenders={**ours, f"`{to}`": partial(write, folder)})
            export(folder, folder / f"export-{to}", source="loose", to=to, workers=2)
            write(folder, folder / f"library-{to}")
        direct = {
            f"`open_dataset`, without an export, {files}": _reader(read_dataset, folder, source)
            for source, files in SOURCES.items()
        }
        for to, read, others in (
            ("webdataset", read_webdataset, direct),
            ("huggingface", read_huggingface, {}),
        ):
            readers = {
                "shards of `batchmill export`": _reader(read, folder, f"export-{to}"),
                "shards of the library": _reader(read, folder, f"library-{to}"),
            }
            run(f"an epoch, {to}", contenders=others | readers)


if __name__ == "__main__":
    main()
