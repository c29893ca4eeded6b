"""Record each input's group and partition in the ledger.

A run that publishes another assignment writes a file, which its snapshot names. It keeps stratified
groups in their partitions, and allows a check of the dataset without its manifest.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.snapshots import Snapshot
from batchmill.core.partitions.partitioning import Partitioning
from batchmill.core.storage import if_exists
from batchmill.core.storage.store import write_and_hash

_REMEDY = (
    "Move it away, and run the same command again. With --stratify, this assigns all groups to "
    "partitions again."
)
SCHEMA = pa.schema(
    [
        # Null for a group without inputs in the dataset. They may be listed again later.
        ("input", pa.string()),
        ("group", pa.string()),
        ("partition", pa.string()),
        # True if the manifest names the group's partition.
        ("given", pa.bool_()),
    ]
)


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """An assignment: the options, and the resulting `rows`."""

    partitioning: Partitioning
    rows: pa.Table

    def listed(self) -> pa.Table:
        """Return the rows of the inputs in the dataset, without groups that have no input."""
        return self.rows.filter(self.rows["input"].is_valid())

    def by_group(self) -> dict[str, str]:
        """Return the partition of each group."""
        columns = (self.rows["group"].to_pylist(), self.rows["partition"].to_pylist())
        return dict(zip(*columns, strict=True))


def write_assignment(ledger: Ledger, run: int, assignment: Assignment) -> Mapping[str, Any]:
    """Record an assignment, unless that of the last run is the same. The caller holds the lease.

    Returns:
        The file and the options, for the snapshot.
    """
    how, rows = assignment.partitioning, assignment.rows
    before = ledger.snapshots.last()
    last = assignment_of(ledger, before)
    if before and last and not how.changes_since(last.partitioning) and rows.equals(last.rows):
        return before.assignment
    name = ledger.snapshots.file_name(run, "partitions")
    written = write_and_hash(ledger.store, name, partial(pq.write_table, rows))
    return {"name": name, "content": written.content, "partitioning": asdict(how)}


def assignment_of(ledger: Ledger, snapshot: Snapshot | None) -> Assignment | None:
    """Return the assignment of a snapshot; None without one. Raises LedgerError."""
    file = snapshot.assignment if snapshot else {}
    data = if_exists(ledger.files.read_file, file, _REMEDY) if file else None
    if data is None:
        return None
    rows = pq.ParquetFile(pa.BufferReader(data)).read().cast(SCHEMA)
    return Assignment(partitioning=Partitioning(**file["partitioning"]), rows=rows)


def last_assignment(ledger: Ledger) -> Assignment | None:
    """Return the last published assignment; None without one. Raises LedgerError.

    A run that publishes nothing keeps the assignment before it.
    """
    return assignment_of(ledger, ledger.snapshots.last())
