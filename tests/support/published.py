"""Make datasets without a run: a ledger, a table, and the output files."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from batchmill.ledger.ledger import Ledger
from batchmill.storage import LocalStore


def publish_rows(folder, files=None, **columns):
    """Make a dataset with these columns; `files` maps names of outputs to contents."""
    Ledger(LocalStore(folder)).create()
    files = files or {}
    if files:
        columns = {"output": [f"files/{name}" for name in files]} | columns
    count = len(next(iter(columns.values())))
    columns = {"input": [f"{number}.src" for number in range(count)]} | columns
    for name, content in files.items():
        path = Path(folder) / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    pq.write_table(pa.table(columns), Path(folder) / "metadata.parquet")
    return folder


def texts(count):
    """Return the contents of `count` text files by name."""
    return {f"{number}.txt": f"text {number}" for number in range(count)}
