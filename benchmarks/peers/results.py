"""Count and hash the rows and files that a contender has written."""

import hashlib
import math
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from batchmill.core.ledger.ledger import Ledger
from batchmill.core.storage import LocalStore
from benchmarks.peers.command import FILES, TABLE
from benchmarks.peers.work import CLIP_SECONDS, COLUMNS


class Left(NamedTuple):
    """The numbers of rows and files, and a hash of their content in any order."""

    rows: int
    files: int
    content: str


def look_at(out: Path, kind: str) -> Left:
    """Read the results in the folder of a contender."""
    table = out / TABLE
    # Some contenders write one Parquet file, others a folder of files.
    parts = sorted(table.glob("**/*.parquet")) if table.is_dir() else [table]
    columns = list(COLUMNS[kind])
    frame = pd.concat([pd.read_parquet(part, columns=columns) for part in parts])
    rows = sorted(zip(*(frame[name].astype(str) for name in columns), strict=True))
    paths = [path for path in (out / FILES).glob("**/*") if path.is_file()]
    hashes = sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in paths)
    whole = hashlib.sha256(repr((rows, hashes)).encode()).hexdigest()
    return Left(len(rows), len(paths), whole)


def expected_counts(kind: str, inputs: int, seconds: float) -> tuple[int, int]:
    """Return the expected numbers of rows and files."""
    if kind == "words":
        return inputs, 0
    clips = inputs * math.ceil(seconds / CLIP_SECONDS)
    return clips, clips


def loop_seconds(dataset: Path) -> float:
    """Return the seconds from the start of the first input to the end of the last one."""
    records = Ledger(LocalStore(dataset)).records(["finished_at", "seconds"]).to_pandas()
    began = records["finished_at"] - records["seconds"]
    return float(records["finished_at"].max() - began.min())
