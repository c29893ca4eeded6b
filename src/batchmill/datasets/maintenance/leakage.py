"""Checks the published partitions of a dataset: no group may be in several partitions.

They are also compared with the partitions of the dataset that it was made from.
"""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchmill.core.layout import MADE_FROM, METADATA, ORIGINAL_INPUT, PARTITION_COLUMN
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.snapshots import Snapshot
from batchmill.core.partitions.manifest_groups import inherited_keys, recorded_groups
from batchmill.core.partitions.partitioning import by_hash, name_of_key
from batchmill.core.partitions.record import Assignment, assignment_of
from batchmill.core.planning.run_spec import spec_of
from batchmill.core.security.allowlist import check_input
from batchmill.core.storage import Store, open_store
from batchmill.core.table_cells import texts_of
from batchmill.errors import LedgerError, OptionError, StoreError


def find_leaks(ledger: Ledger) -> Iterator[str]:
    """Yield the faults in the partitions of the last version.

    Yields nothing if it has no partitions.
    """
    version = _last_divided(ledger)
    if version is None or not ledger.store.exists(METADATA):
        return
    assignment = assignment_of(ledger, version)
    if assignment is None:
        yield "the ledger's record of the partitions is missing; the next run writes it"
        return
    try:
        published = _read_columns(ledger.store, ["input", PARTITION_COLUMN])
    except (OSError, pa.ArrowException, StoreError) as error:
        yield f"cannot be read: {error}"
        return
    if {*published.columns} != {"input", PARTITION_COLUMN}:
        yield f"has no column {PARTITION_COLUMN!r}"
        return
    published = published.drop_duplicates()
    listed = assignment.listed().to_pandas()
    yield from torn_groups(published.merge(listed[["input", "group"]], on="input"))
    expected = listed.set_index("input")[PARTITION_COLUMN]
    for name, _, partition, right in _misplaced(published, "input", expected):
        yield f"{name} is in {partition}, but was assigned to {right}"
    yield from _not_as_hashed(assignment)


def find_duplicates(ledger: Ledger) -> Iterator[str]:
    """Yield inputs with the same content that are in different partitions."""
    version = _last_divided(ledger)
    assignment = assignment_of(ledger, version)
    if version is None or assignment is None:
        return
    records = ledger.files.read_state(version).listed().records(["input", "content", "size"])
    contents = records.filter(
        # Inputs without a recorded content would all seem equal, and empty inputs are equal.
        pc.and_(pc.not_equal(records["content"], ""), pc.greater(records["size"], 0))
    ).select(["input", "content"])
    frame = contents.to_pandas().merge(assignment.listed().to_pandas(), on="input")
    for _, same in _several(frame.sort_values("input"), "content"):
        yield f"{_where(same)} have the same content"


def _last_divided(ledger: Ledger) -> Snapshot | None:
    """Return the last snapshot that the tables show; None if it has no partitions."""
    last = ledger.snapshots.last()
    shown = last if last and last.shown else ledger.snapshots.last_version()
    return shown if shown and shown.settings["options"]["partition"] else None


def torn_groups(rows: pd.DataFrame) -> Iterator[str]:
    """Yield the groups with rows in several partitions.

    Args:
        rows: The columns `input`, `group` and `partition`. Rows without a value are ignored.
    """
    for key, torn in _several(rows, "group"):
        yield f"{name_of_key(key)} is in several partitions: {_where(torn)}"


def _misplaced(rows: pd.DataFrame, key: str, expected: pd.Series) -> Iterator[tuple[Any, ...]]:
    """Yield the input, the key, the partition and the right partition of rows in a wrong one.

    Args:
        rows: The columns `input` and `partition`, and that of the key.
        key: The column whose values decide the partition.
        expected: The right partition of each value.
    """
    frame = rows.assign(right=rows[key].map(expected))
    # A null is compared too: each row must have a partition.
    texts = frame.astype(object).where(frame.notna(), "no partition")
    wrong = texts[texts[PARTITION_COLUMN] != texts["right"]]
    columns = [wrong[name] for name in ("input", key, PARTITION_COLUMN, "right")]
    return zip(*columns, strict=True)


def _not_as_hashed(assignment: Assignment) -> Iterator[str]:
    """Check the record itself: a group without a given partition must follow its hash.

    Stratified partitions are skipped, because they do not follow the hash alone.
    """
    if assignment.partitioning.stratify is not None:
        return
    frame = assignment.listed().to_pandas().drop_duplicates(["group", PARTITION_COLUMN])
    frame = frame[~frame["given"]]
    hashed = by_hash(frame["group"], assignment.partitioning)
    for key, partition, right in zip(frame["group"], frame[PARTITION_COLUMN], hashed, strict=True):
        if partition != right:
            yield f"{name_of_key(key)} was assigned to {partition}, but its hash gives {right}"


def _several(frame: pd.DataFrame, column: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield each value in `column` that is in several partitions, with a row of each one."""
    pair = [column, PARTITION_COLUMN]
    one_of_each = frame.dropna(subset=pair).drop_duplicates(pair)
    for key, rows in one_of_each[one_of_each.duplicated(column, keep=False)].groupby(column):
        yield str(key), rows


def _where(rows: pd.DataFrame) -> str:
    pairs = zip(rows["input"], rows[PARTITION_COLUMN], strict=True)
    return " and ".join(f"{name} ({partition})" for name, partition in pairs)


class Finding(NamedTuple):
    """A leak, a duplicate, or the reason why the partitions were not compared."""

    kind: Literal["leak", "duplicate", "unchecked"]
    message: str


def compare_with_source(ledger: Ledger) -> Iterator[Finding]:
    """Yield the differences from the partitions of the dataset that the last version was made from.

    Yields nothing if the manifest was not a dataset, or if the table has no partitions.
    """
    last = ledger.snapshots.last_version()
    spec = spec_of(last.settings) if last else None
    if spec is None or not spec.source_dataset:
        return
    source, version = spec.source_dataset, spec.source_version if spec.names_version else 0
    try:
        rows = _read_columns(ledger.store, ["input", MADE_FROM, ORIGINAL_INPUT, PARTITION_COLUMN])
    except (OSError, pa.ArrowException, StoreError):
        return  # The comparison of the table with its hash has reported it.
    if not {MADE_FROM, PARTITION_COLUMN} <= {*rows.columns}:
        return
    try:
        check_input(source)
        groups = recorded_groups(source, version)
        store = open_store(source)
        name = Ledger(store).snapshots.file_name(version, "table") if version else METADATA
        table = _read_columns(store, ["input", PARTITION_COLUMN], name)
    except (OSError, pa.ArrowException, LedgerError, OptionError, StoreError) as error:
        yield Finding(
            "unchecked",
            f"its partitions were not compared with {source}: {str(error).rstrip('.')}. "
            "Restore that dataset, or ignore this warning",
        )
        return
    rows = rows.drop_duplicates()
    rows["group"] = pd.Series(inherited_keys(rows, groups), rows.index, object)
    for message in torn_groups(rows):
        yield Finding("leak", message)
    if PARTITION_COLUMN in table.columns:
        divided = table.dropna(subset=[PARTITION_COLUMN]).drop_duplicates("input")
        expected = divided.set_index("input")[PARTITION_COLUMN]
        known = rows[rows[MADE_FROM].isin(expected.index)]
        for name, made_from, partition, right in _misplaced(known, MADE_FROM, expected):
            message = f"{name} is in {partition}, but {made_from} is in {right} in {source}"
            yield Finding("leak", message)


def _read_columns(store: Store, names: list[str], table: str = METADATA) -> pd.DataFrame:
    """Read those columns of a dataset's table that exist. Partitions become text."""
    with store.open(table) as opened:
        file = pq.ParquetFile(opened)
        known = [name for name in names if name in file.schema_arrow.names]
        frame: pd.DataFrame = file.read(columns=known).to_pandas()
    if PARTITION_COLUMN in frame.columns:
        # A partition from a manifest may be a number.
        frame[PARTITION_COLUMN] = pd.Series(texts_of(frame[PARTITION_COLUMN]), frame.index, object)
    return frame
