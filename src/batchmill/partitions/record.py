"""Record each input's group and partition in the ledger.

A run that publishes another assignment writes a file. It keeps stratified groups in their
partitions, and allows a check of the dataset without its manifest. Its name ends with a hash of its
content, so that damage is detected.
"""

import json
from dataclasses import asdict, dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from xxhash import xxh3_64_hexdigest

from batchmill.errors import LedgerError
from batchmill.layout import PARTITIONS
from batchmill.ledger.ledger import Ledger
from batchmill.ledger.parts import write_hashed
from batchmill.ledger.snapshots import Snapshot
from batchmill.partitions.partitioning import Partitioning
from batchmill.storage import if_exists

_VERSION = "1"
_VERSION_KEY, _HOW_KEY = b"batchmill.partitions", b"batchmill.partitioning"
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


def write_assignment(ledger: Ledger, run: int, assignment: Assignment) -> str:
    """Record an assignment, unless that of the last run is the same. Return the file's name.

    The caller must hold the dataset's lease.
    """
    how, rows = assignment.partitioning, assignment.rows
    before = ledger.snapshots.last()
    last = assignment_of(ledger, before)
    if before and last and not how.changes_since(last.partitioning) and rows.equals(last.rows):
        return before.assignment
    described = {
        _VERSION_KEY: _VERSION,
        # The order of the shares matters, and JSON keeps it.
        _HOW_KEY: json.dumps(asdict(how)),
    }
    rows = rows.replace_schema_metadata(described)
    return write_hashed(ledger.store, f"{PARTITIONS}/{run:06d}", rows)


def assignment_of(ledger: Ledger, snapshot: Snapshot | None) -> Assignment | None:
    """Return the assignment of a snapshot; None without one. Raises LedgerError."""
    if snapshot is None or not snapshot.assignment:
        return None
    return if_exists(_read, ledger, snapshot.assignment)


def last_assignment(ledger: Ledger) -> Assignment | None:
    """Return the last published assignment; None without one. Raises LedgerError.

    A run that publishes nothing keeps the assignment before it.
    """
    return assignment_of(ledger, ledger.snapshots.last())


def _read(ledger: Ledger, name: str) -> Assignment:
    place = ledger.store.url_of(name)
    remedy = (
        "Move the file away, then run the command again. With --stratify, this assigns all groups "
        "to partitions again."
    )
    try:
        with ledger.store.open(name) as source:
            data = source.read_buffer()
        if not name.endswith(f"-{xxh3_64_hexdigest(data)}.parquet"):
            raise LedgerError(
                f"{place}: is damaged. Its content does not match the hash in its name. {remedy}"
            )
        rows = pq.ParquetFile(pa.BufferReader(data)).read()
        metadata = rows.schema.metadata or {}
        version = metadata.get(_VERSION_KEY, b"none").decode()
        if version != _VERSION:
            raise LedgerError(
                f"{place}: has version {version}, but this batchmill supports version {_VERSION}. "
                "Install the batchmill version that wrote it, or a newer one."
            )
        partitioning = Partitioning(**json.loads(metadata[_HOW_KEY]))
        rows = rows.replace_schema_metadata().cast(SCHEMA)
        rows.validate(full=True)
    except (OSError, pa.ArrowException, ValueError, TypeError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise LedgerError(f"{place}: cannot be read ({reason}). {remedy}") from error
    return Assignment(partitioning=partitioning, rows=rows)
