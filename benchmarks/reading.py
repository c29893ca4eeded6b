"""Measure the memory and look-up time of a dataset with many samples in DataLoader workers.

python -m benchmarks.reading [--rows 10000000] [--workers 8] [--listed 1000000]

The workers read every page of the table and open no file. The memory of a worker is its unshared
memory (USS), minus that of a worker whose dataset has ten samples. For comparison, a torch Dataset
with a list of ids and a dictionary of labels has `--listed` samples.
"""

import argparse
import multiprocessing
import pickle
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from torch.utils.data import DataLoader, Dataset

from batchmill import SampleDataset, open_dataset
from batchmill.core.layout import FAILURES_CSV, METADATA
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.snapshots import Snapshot
from batchmill.core.ledger.state import State
from batchmill.core.storage import LocalStore

BATCH = 5_000
# A page of the file holds more rows than this, so every page is read.
STRIDE = 20
CLASSES = 1_000


class Listed(Dataset[Any]):
    """A typical torch Dataset with a list and a dictionary."""

    def __init__(self, ids: list[str], labels: dict[str, str]) -> None:
        self.ids = ids
        self.labels = labels

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> tuple[str, str]:
        name = self.ids[index]
        return name, self.labels[name]


def suffix_of(path: Path) -> str:
    """Return the suffix, without opening the file."""
    return path.suffix


def collate_to_count(batch: Sequence[Any]) -> int:
    """Return only the size of a batch, so that no batch is sent between processes."""
    return len(batch)


def publish(folder: Path, rows: int) -> None:
    """Publish the table of a dataset with `rows` samples."""
    ledger = Ledger(LocalStore(folder))
    ledger.create()
    batch = 1_000_000
    schema = pa.schema([("input", pa.string()), ("output", pa.string()), ("label", pa.string())])
    with pq.ParquetWriter(folder / "metadata.parquet", schema, compression="zstd") as writer:
        for start in range(0, rows, batch):
            numbers = np.arange(start, min(start + batch, rows))
            names = [f"recordings/{number:08}.flac" for number in numbers]
            outputs = [f"files/{number:08}-{number:016x}/0000.wav" for number in numbers]
            labels = [f"class {number % CLASSES}" for number in numbers]
            writer.write_table(pa.table([names, outputs, labels], schema=schema))
    snapshots, store = ledger.snapshots, ledger.store
    store.copy(METADATA, snapshots.file_name(1, "table"))
    found = {"content": store.content_of(METADATA), "rows": rows}
    state = ledger.files.write_state(1, State(store)).file
    snapshot = Snapshot(
        number=1, created=1.0, state=state or {}, shown=1, step="step", settings={}, made_of="",
        tables={METADATA: found, FAILURES_CSV: {"rows": 0}},
    )  # fmt: skip
    snapshots.record(snapshot)


def worker_mib(dataset: Any, workers: int, context: str) -> Iterator[float]:
    """Yield the unshared memory of each worker in MiB, after all samples were read."""
    loader = DataLoader(
        dataset,
        batch_size=BATCH,
        sampler=range(0, len(dataset), STRIDE),
        num_workers=workers,
        multiprocessing_context=context,
        persistent_workers=True,
        collate_fn=collate_to_count,
    )
    sum(loader)
    # In the second pass, each worker reads other samples than in the first.
    sum(loader)
    me = psutil.Process()
    for child in me.children():
        if "resource_tracker" not in " ".join(child.cmdline()):
            yield child.memory_full_info().uss / 2**20


def look_up_microseconds(dataset: Any) -> float:
    """Return the time of one look-up in microseconds, in random order."""
    picked = np.random.default_rng(0).integers(0, len(dataset), 100_000).tolist()
    start = time.perf_counter()
    for index in picked:
        dataset[index]
    return (time.perf_counter() - start) / len(picked) * 1e6


def table_row(name: str, dataset: Any, workers: int, bare: dict[str, float]) -> None:
    """Print one row of the table."""
    cells = [f"{len(dataset):,}", f"{len(pickle.dumps(dataset)):,}"]
    cells.append(f"{look_up_microseconds(dataset):.1f}")
    for context in ("fork", "spawn"):
        found = [mib - bare[context] for mib in worker_mib(dataset, workers, context)]
        cells.append(f"{sum(found) / len(found):,.0f}")
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


def opened(folder: Path, rows: int) -> SampleDataset:
    """Create a dataset with `rows` samples, and open it."""
    folder.mkdir()
    # In a separate process: forks would also copy memory that this process has freed.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        pool.submit(publish, folder, rows).result()
    start = time.perf_counter()
    dataset = open_dataset(folder, load=suffix_of)
    seconds = time.perf_counter() - start
    print(f"opening {rows:,} samples: {seconds:.1f} s", flush=True)
    return dataset


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--listed", type=int, default=1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="batchmill-benchmark-") as folder:
        small = opened(Path(folder) / "small", 10)
        bare = {}
        for context in ("fork", "spawn"):
            found = list(worker_mib(small, options.workers, context))
            bare[context] = sum(found) / len(found)
        dataset = opened(Path(folder) / "large", options.rows)
        print("| dataset | samples | pickled, bytes | look-up, us | fork, MiB | spawn, MiB |")
        print("|---|---|---|---|---|---|")
        table_row("open_dataset", dataset, options.workers, bare)
        print(f"peak of the opening process: {peak_mib():,.0f} MiB", flush=True)
        ids = [f"files/{number:08}-{number:016x}/0000.wav" for number in range(options.listed)]
        labels = {name: f"class {number % CLASSES}" for number, name in enumerate(ids)}
        table_row("list and dict", Listed(ids, labels), options.workers, bare)


def peak_mib() -> float:
    """Return the peak of this process's resident memory in MiB."""
    line = next(row for row in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in row)
    return int(line.split()[1]) / 2**10


if __name__ == "__main__":
    main()
