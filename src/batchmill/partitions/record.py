"""Record each input's group and partition in the ledger.

Each run that changes the assignment writes a file. The latest file counts. It keeps stratified
groups in their partitions, and allows a check of the dataset without its manifest. Its name ends
with a hash of its content, so that damage is detected. Files of batchmill 0.1.0 have no hash.
"""

import json
import re
from dataclasses import asdict, dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from xxhash import xxh3_64_hexdigest

from batchmill.errors import LedgerError
from batchmill.layout import PARTITIONS
from batchmill.ledger.ledger import Ledger
from batchmill.ledger.parts import write_hashed
from batchmill.partitions.partitioning import Partitioning

_VERSION = "1"
_NAME = re.compile(r"([0-9]+)(?:-([0-9a-f]{16}))?\.parquet")
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


def write_assignment(ledger: Ledger, run: int, assignment: Assignment) -> None:
    """Record an assignment, unless the last one is the same.

    The caller must hold the dataset's lease.
    """
    how, rows = assignment.partitioning, assignment.rows
    last = last_assignment(ledger)
    if last and not how.changes_since(last.partitioning) and rows.equals(last.rows):
        return
    described = {
        _VERSION_KEY: _VERSION,
        # The order of the shares matters, and JSON keeps it.
        _HOW_KEY: json.dumps(asdict(how)),
    }
    rows = rows.replace_schema_metadata(described)
    write_hashed(ledger.store, f"{PARTITIONS}/{run:06d}", rows)


def last_assignment(ledger: Ledger, until: int | None = None) -> Assignment | None:
    """Return the last assignment, up to a run; None without one. Raises LedgerError."""
    names = [name for name in _names(ledger) if until is None or _run_of(name) <= until]
    return _read(ledger, f"{PARTITIONS}/{names[-1]}") if names else None


def last_with(ledger: Ledger, partitioning: Partitioning) -> Assignment | None:
    """Return the last assignment with the same options; None without one. Raises LedgerError.

    There are several assignments only after a run that published nothing, or was killed before.
    """
    for name in reversed(_names(ledger)):
        found = _read(ledger, f"{PARTITIONS}/{name}")
        if not partitioning.changes_since(found.partitioning):
            return found
    return None


def name_of_last(ledger: Ledger) -> str:
    """Return the file name of the last assignment; empty without one."""
    return next(reversed(_names(ledger)), "")


def has_assigned(ledger: Ledger, run: int) -> bool:
    """Return whether a run recorded a new assignment."""
    return any(_run_of(name) == run for name in _names(ledger))


def forget_earlier(ledger: Ledger) -> None:
    """Remove all assignments but the last, at the end of a run."""
    for name in _names(ledger)[:-1]:
        ledger.store.delete(f"{PARTITIONS}/{name}")


def _names(ledger: Ledger) -> list[str]:
    return sorted(filter(_NAME.fullmatch, ledger.store.names(PARTITIONS)), key=_run_of)


def _run_of(name: str) -> int:
    return int(name.partition(".")[0].partition("-")[0])


def _read(ledger: Ledger, name: str) -> Assignment:
    place = ledger.store.url_of(name)
    remedy = (
        "Move the file away, then run the command again. With --stratify, this assigns all groups "
        "to partitions again."
    )
    try:
        with ledger.store.open(name) as source:
            data = source.read_buffer()
        expected = _NAME.fullmatch(name.rpartition("/")[2])
        if expected and expected[2] not in (None, xxh3_64_hexdigest(data)):
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
