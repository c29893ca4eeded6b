"""The command line and the table that all contenders share."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.peers.work import SUFFIXES, Row

TABLE = "metadata.parquet"
FILES = "files"


class Task(NamedTuple):
    """The kind of work, the files, and the folder for the results."""

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
    """Parse the command line of a contender: KIND INPUTS OUT [--workers N]."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=tuple(SUFFIXES))
    parser.add_argument("inputs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    # Absolute, because some contenders change their working directory.
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
    """Print the seconds of the loop alone as JSON. None: they are unknown.

    `benchmarks.compare` counts rows and files itself, after it has stopped the clock.
    """
    print(json.dumps({"seconds": seconds}), flush=True)
