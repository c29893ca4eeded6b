"""What a contender has left: how many rows and files, and whether they are the right ones."""

import hashlib
import math
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from batchmill.ledger.ledger import Ledger
from batchmill.storage import LocalStore
from benchmarks.peers.command import FILES, TABLE
from benchmarks.peers.work import CLIP_SECONDS, COLUMNS


class Left(NamedTuple):
    """Rows and files, and a hash of what is in them, in whatever order and under whatever name."""

    rows: int
    files: int
    content: str


def look_at(out: Path, kind: str) -> Left:
    """Look at what lies in a contender's folder."""
    table = out / TABLE
    # Some write one Parquet file, some a folder of them.
    parts = sorted(table.glob("**/*.parquet")) if table.is_dir() else [table]
    columns = list(COLUMNS[kind])
    frame = pd.concat([pd.read_parquet(part, columns=columns) for part in parts])
    rows = sorted(zip(*(frame[name].astype(str) for name in columns), strict=True))
    paths = [path for path in (out / FILES).glob("**/*") if path.is_file()]
    hashes = sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in paths)
    whole = hashlib.sha256(repr((rows, hashes)).encode()).hexdigest()
    return Left(len(rows), len(paths), whole)


def expected_counts(kind: str, inputs: int, seconds: float) -> tuple[int, int]:
    """Return how many rows and files there must be."""
    if kind == "words":
        return inputs, 0
    clips = inputs * math.ceil(seconds / CLIP_SECONDS)
    return clips, clips


def loop_seconds(dataset: Path) -> float:
    """Return the time from the first input's start to the last one's end, as batchmill noted it."""
    records = Ledger(LocalStore(dataset)).records(["finished_at", "seconds"]).to_pandas()
    began = records["finished_at"] - records["seconds"]
    return float(records["finished_at"].max() - began.min())
