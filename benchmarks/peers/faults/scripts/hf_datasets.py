"""Hugging Face datasets: `map` with two processes, then `to_parquet`.

The list of files is made with `from_generator`, so that it has a cache. `map` keeps its result by a
hash of the list and the function, one part for each process. An exception ends `map`, so the
function returns errors in a column. There is no limit of time or memory.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets

from benchmarks.peers.faults.step import tried


def listed(paths: list[str]) -> Iterator[dict[str, str]]:
    """Yield a row for each path."""
    for path in paths:
        yield {"path": path}


def attempt(item: dict[str, str]) -> dict[str, Any]:
    """Return the row of a path."""
    return tried(item["path"])


def main() -> None:
    """Run `map`."""
    paths = sorted(str(path) for path in Path(sys.argv[1]).iterdir())
    files = datasets.Dataset.from_generator(listed, gen_kwargs={"paths": paths})
    table = files.map(attempt, num_proc=2, remove_columns=["path"])
    table.to_parquet(Path(sys.argv[2]) / "rows.parquet")
    failed = [row for row in table if row["error"]]
    for row in failed:
        print(f"{row['name']}: {row['error']}", file=sys.stderr)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
