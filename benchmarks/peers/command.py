"""What the contenders' command lines and tables have in common."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.peers.work import SUFFIXES, Row

TABLE = "metadata.parquet"
FILES = "files"


class Task(NamedTuple):
    """What a contender is to do: the kind of work, on which files, with results in which folder."""

    kind: str
    sources: list[Path]
    inputs: Path
    out: Path
    workers: int

    @property
    def files(self) -> Path:
        """The folder for output files."""
        return self.out / FILES

    @property
    def table(self) -> Path:
        """The metadata table: a Parquet file, or a folder of them."""
        return self.out / TABLE


def read_command() -> Task:
    """Read the command line, which is the same for all: KIND INPUTS OUT [--workers N]."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=tuple(SUFFIXES))
    parser.add_argument("inputs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    # Absolute, because some contenders work in folders of their own.
    inputs, out = options.inputs.resolve(), options.out.resolve()
    sources = sorted(inputs.glob(f"*{SUFFIXES[options.kind]}"))
    (out / FILES).mkdir(parents=True, exist_ok=True)
    return Task(options.kind, sources, inputs, out, options.workers)


def write_table(rows: Sequence[Row], path: Path) -> None:
    """Write rows as one Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows)), path)


def tell(seconds: float | None = None) -> None:
    """Print a line of JSON; `seconds` is of the loop over the files alone, if that can be told.

    Rows and files are counted by `benchmarks.compare`, from what lies there when the clock has
    stopped.
    """
    print(json.dumps({"seconds": seconds}), flush=True)
