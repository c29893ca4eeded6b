"""Make datasets without a run: a ledger, a table, and the output files."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.snapshots import Snapshot
from batchmill.core.ledger.state import State
from batchmill.core.planning.run_spec import RunSpec
from batchmill.core.storage import LocalStore
from batchmill.core.storage.fingerprints import hash_bytes

SPEC = RunSpec(
    run=1,
    counts={},
    resolved={},
    step="m:step",
    params={},
    search="",
    root="",
    identity="step",
    batch_size=1,
    num_workers=1,
)


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
    publish_table(folder, pa.table(columns))
    return folder


def publish_table(folder, table, run=1, **settings):
    """Publish a table of a dataset, as a run does. The state is empty."""
    ledger = Ledger(LocalStore(folder))
    path = Path(folder) / "metadata.parquet"
    pq.write_table(table, path)
    ledger.store.copy("metadata.parquet", ledger.snapshots.file_name(run, "table"))
    found = {"content": hash_bytes(path.read_bytes()), "rows": len(table)}
    spec = replace(SPEC, run=run, **settings)
    snapshot = Snapshot(
        number=run,
        created=1.0,
        state=ledger.files.write_state(run, State(ledger.store)).file,
        shown=run,
        step="step",
        settings=spec.as_json(),
        made_of="",
        tables={"metadata.parquet": found, "failures.csv": {"rows": 0}},
    )
    ledger.snapshots.record(snapshot)
    return snapshot


def texts(count):
    """Return the contents of `count` text files by name."""
    return {f"{number}.txt": f"text {number}" for number in range(count)}
