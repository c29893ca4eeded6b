"""Record each input's group and partition in the ledger.

Each run that changes the assignment writes a file. The latest file counts. It keeps stratified
groups in their partitions, and allows a check of the dataset without its manifest.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchmill.errors import LedgerError, OptionError
from batchmill.ledger.ledger import PARTITIONS, Ledger
from batchmill.manifest import Manifest
from batchmill.partitioning import COLUMN, Groups, Partitioning, assign, given_by_key

_VERSION = "1"
_VERSION_KEY, _HOW_KEY = b"batchmill.partitions", b"batchmill.partitioning"
_SCHEMA = pa.schema(
    [
        # Null for a group that the manifest no longer lists. It may be listed again later.
        ("input", pa.string()),
        ("group", pa.string()),
        ("partition", pa.string()),
        # True if the manifest names the group's partition.
        ("given", pa.bool_()),
    ]
)


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """A recorded assignment: the options, and the resulting `rows`."""

    partitioning: Partitioning
    rows: pa.Table

    def by_group(self) -> dict[str, str]:
        """Return the partition of each group."""
        columns = (self.rows["group"].to_pylist(), self.rows["partition"].to_pylist())
        return dict(zip(*columns, strict=True))


def divide_manifest(
    ledger: Ledger, manifest: Manifest, partitioning: Partitioning
) -> tuple[Manifest, list[str]]:
    """Return the manifest with the partition of each row, and why groups are assigned again."""
    if manifest.groups is None:
        return manifest, []
    known: Mapping[str, str] = {}
    changes: list[str] = []
    if partitioning.stratify is not None:
        last, same = last_assignment(ledger), _last_of(ledger, partitioning)
        known = same.by_group() if same else {}
        changes = partitioning.changes_since(last.partitioning) if last and not same else []
    return replace(manifest, partition=assign(manifest.groups, partitioning, known)), changes


def record_assignment(
    ledger: Ledger, run: int, manifest: Manifest, partitioning: Partitioning
) -> None:
    """Record the partition of each input, unless the ledger already has the same assignment.

    The caller must hold the dataset's lease.
    """
    if manifest.groups is None:
        return
    rows = _rows_of(manifest, manifest.groups)
    same = _last_of(ledger, partitioning)
    if same and partitioning.stratify is not None:
        rows = pa.concat_tables([rows, _gone(same.rows, rows)])
    last = last_assignment(ledger)
    if last and not partitioning.changes_since(last.partitioning) and rows.equals(last.rows):
        return
    described = {
        _VERSION_KEY: _VERSION,
        # The order of the shares matters, and JSON keeps it.
        _HOW_KEY: json.dumps(asdict(partitioning)),
    }
    rows = rows.replace_schema_metadata(described)
    name = f"{PARTITIONS}/{run:06d}.parquet"
    ledger.store.write_atomic(name, lambda file: pq.write_table(rows, file, compression="zstd"))


def _rows_of(manifest: Manifest, groups: Groups) -> pa.Table:
    given = pa.array(list(given_by_key(groups)), pa.string())
    columns = [
        manifest.inputs["input"].combine_chunks(),
        groups.keys,
        manifest.partition,
        pc.is_in(groups.keys, value_set=given),
    ]
    return pa.table(columns, schema=_SCHEMA)


def _gone(before: pa.Table, now: pa.Table) -> pa.Table:
    """Return the recorded groups that are no longer listed, once each, sorted."""
    gone = before.filter(pc.invert(pc.is_in(before["group"], value_set=now["group"])))
    frame = gone.to_pandas().drop_duplicates("group").sort_values("group")
    return pa.Table.from_pandas(
        frame.assign(input=None, given=False), schema=_SCHEMA, preserve_index=False
    )


def last_assignment(ledger: Ledger, until: int | None = None) -> Assignment | None:
    """Return the last assignment, up to a run; None without one. Raises LedgerError."""
    names = [name for name in _names(ledger) if until is None or _run_of(name) <= until]
    return _read(ledger, f"{PARTITIONS}/{names[-1]}") if names else None


def has_assigned(ledger: Ledger, run: int) -> bool:
    """Return whether a run recorded a new assignment."""
    return any(_run_of(name) == run for name in _names(ledger))


def _last_of(ledger: Ledger, partitioning: Partitioning) -> Assignment | None:
    """Return the last assignment with the same options.

    There are several assignments only after a killed run, which may not have published its own.
    """
    for name in reversed(_names(ledger)):
        found = _read(ledger, f"{PARTITIONS}/{name}")
        if not partitioning.changes_since(found.partitioning):
            return found
    return None


def forget_earlier(ledger: Ledger) -> None:
    """Remove all assignments but the last, at the end of a run."""
    for name in _names(ledger)[:-1]:
        ledger.store.delete(f"{PARTITIONS}/{name}")


def _names(ledger: Ledger) -> list[str]:
    found = ledger.store.names(PARTITIONS)
    return sorted((name for name in found if name.partition(".")[0].isdigit()), key=_run_of)


def _run_of(name: str) -> int:
    return int(name.partition(".")[0])


def _read(ledger: Ledger, name: str) -> Assignment:
    place = ledger.store.url_of(name)
    try:
        rows = pq.ParquetFile(ledger.store.open(name)).read()
    except (OSError, pa.ArrowException) as error:
        raise LedgerError(
            f"{place}: cannot be read ({error}). Move the file away, then run the command again. "
            "With --stratify, this assigns all groups to partitions again."
        ) from error
    metadata = rows.schema.metadata or {}
    version = metadata.get(_VERSION_KEY, b"none").decode()
    if version != _VERSION:
        raise LedgerError(
            f"{place}: has version {version}, but this batchmill supports version {_VERSION}. "
            "Install the batchmill version that wrote it, or a newer one."
        )
    partitioning = Partitioning(**json.loads(metadata[_HOW_KEY]))
    return Assignment(partitioning=partitioning, rows=rows.replace_schema_metadata())


def check_rows(ledger: Ledger, unchecked: pa.ChunkedArray) -> None:
    """Raise OptionError if a recorded row has a key `partition`.

    Inputs in `unchecked` are not checked, because their rows are replaced and checked then.
    """
    records = ledger.records(["input", "rows"])
    suspects = records.filter(pc.match_substring(records["rows"], json.dumps(COLUMN) + ":"))
    suspects = suspects.filter(pc.invert(pc.is_in(suspects["input"], value_set=unchecked)))
    for record in suspects.sort_by("input").to_pylist():
        # The match may be a nested key or a value.
        if any(COLUMN in row for row in json.loads(record["rows"])):
            raise OptionError(
                f"--partition: the step returned the key {COLUMN!r} for {record['input']}, but "
                "batchmill writes this column. Rename the key in the step, or drop --partition."
            )
