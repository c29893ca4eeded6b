"""Hugging Face datasets: `map` over batches of paths in several processes, then `to_parquet`.

python -m benchmarks.peers.datasets KIND INPUTS OUT [--workers 2]
"""

import time
from pathlib import Path
from typing import Any

import datasets

from benchmarks.peers.command import read_command, tell
from benchmarks.peers.work import make_work


def main() -> None:
    """Run `map`."""
    task = read_command()
    work, files = make_work(task.kind), task.files

    def process(batch: dict[str, list[str]]) -> dict[str, list[Any]]:
        rows = [row for path in batch["path"] for row in work(Path(path), files)]
        return {name: [row[name] for row in rows] for name in rows[0]}

    begun = time.perf_counter()
    table = datasets.Dataset.from_dict({"path": [str(source) for source in task.sources]})
    table.map(
        process,
        # Paths are divided among the processes first, so the batch size (1,000) has no effect.
        batched=True,
        num_proc=task.workers,
        remove_columns=["path"],
    ).to_parquet(str(task.table))
    tell(time.perf_counter() - begun)


if __name__ == "__main__":
    main()
