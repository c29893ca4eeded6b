"""Prove that no group of a dataset spans its partitions, from what it has published."""

from collections.abc import Iterator

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchmill.errors import StoreError
from batchmill.ledger.ledger import Ledger
from batchmill.partitioning import COLUMN, by_hash, name_of_key
from batchmill.planning.partition_assignment import Assignment, last_assignment
from batchmill.planning.run_spec import read_work
from batchmill.storage import METADATA


def find_leaks(ledger: Ledger) -> Iterator[str]:
    """Yield what is not as it should be in the partitions that the last run has published.

    Nothing where it had none.
    """
    run = _last_divided(ledger)
    if run is None or not ledger.store.exists(METADATA):
        return
    assignment = last_assignment(ledger, run)
    if assignment is None:
        yield "the ledger's record of the partitions is gone; the next run writes it"
        return
    try:
        table = pq.ParquetFile(ledger.store.open(METADATA)).read(columns=["input", COLUMN])
    except (OSError, pa.ArrowException, StoreError) as error:
        yield f"cannot be read: {error}"
        return
    if set(table.column_names) != {"input", COLUMN}:
        yield f"has no column {COLUMN!r}"
        return
    published = table.to_pandas().drop_duplicates()
    yield from _torn_groups(published, assignment)
    yield from _not_as_assigned(published, assignment)
    yield from _not_as_hashed(assignment)


def find_duplicates(ledger: Ledger) -> Iterator[str]:
    """Yield inputs with the same content that are in different partitions."""
    run = _last_divided(ledger)
    assignment = None if run is None else last_assignment(ledger, run)
    if assignment is None:
        return
    records = ledger.records(["input", "outcome", "content", "size"])
    contents = records.filter(
        # Without content, all are equal; one that is empty is no example of anything.
        pc.and_(pc.not_equal(records["content"], ""), pc.greater(records["size"], 0))
    ).select(["input", "content"])
    frame = contents.to_pandas().merge(_listed(assignment), on="input")
    one_of_each = frame.sort_values("input").drop_duplicates(["content", COLUMN])
    for _, same in _several(one_of_each, "content"):
        yield f"{_where(same)} have the same content"


def _last_divided(ledger: Ledger) -> int | None:
    """Return the last run that has come to its end, as the tables are its; None if it divided not.

    What a run has recorded that was killed before its tables is not published yet.
    """
    runs = reversed(ledger.runs())
    last = next((run for run in runs if ledger.read_summary(run) is not None), None)
    return last if last is not None and read_work(ledger, last).partitioning else None


def _listed(assignment: Assignment) -> pd.DataFrame:
    """Return `input`, `group`, `partition` and `given` of the inputs that the manifest listed."""
    rows = assignment.rows
    frame: pd.DataFrame = rows.filter(rows["input"].is_valid()).to_pandas()
    return frame


def _torn_groups(published: pd.DataFrame, assignment: Assignment) -> Iterator[str]:
    groups = _listed(assignment)[["input", "group"]]
    frame = published.dropna(subset=[COLUMN]).merge(groups, on="input")
    one_of_each = frame.drop_duplicates(["group", COLUMN])
    for key, torn in _several(one_of_each, "group"):
        yield f"{name_of_key(key)} is in several partitions: {_where(torn)}"


def _not_as_assigned(published: pd.DataFrame, assignment: Assignment) -> Iterator[str]:
    expected = _listed(assignment)[["input", COLUMN]]
    frame = published.merge(expected, on="input", how="left", suffixes=("", "_assigned"))
    # What the manifest no longer lists is in none.
    texts = frame.astype(object).where(frame.notna(), "none")
    wrong = texts[texts[COLUMN] != texts[f"{COLUMN}_assigned"]]
    for name, found, assigned in wrong.itertuples(index=False, name=None):
        yield f"{name} is in {found}, and was assigned to {assigned}"


def _not_as_hashed(assignment: Assignment) -> Iterator[str]:
    """Check the record itself: what nobody has named or dealt is where its hash says."""
    if assignment.partitioning.stratify is not None:
        return
    frame = _listed(assignment).drop_duplicates(["group", COLUMN])
    frame = frame[~frame["given"]]
    hashed = by_hash(frame["group"], assignment.partitioning)
    for key, found, right in zip(frame["group"], frame[COLUMN], hashed, strict=True):
        if found != right:
            yield f"{name_of_key(key)} was assigned to {found}, and its hash says {right}"


def _several(frame: pd.DataFrame, column: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield those groups of rows that have more than one."""
    for key, rows in frame[frame.duplicated(column, keep=False)].groupby(column):
        yield str(key), rows


def _where(rows: pd.DataFrame) -> str:
    pairs = zip(rows["input"], rows[COLUMN], strict=True)
    return " and ".join(f"{name} ({partition})" for name, partition in pairs)
