"""Compares the partitions of a dataset with those of the dataset that it was made from."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from batchmill.cells import texts_of
from batchmill.errors import LedgerError, StoreError
from batchmill.layout import MADE_FROM, METADATA, ORIGINAL_INPUT, PARTITION_COLUMN
from batchmill.ledger.ledger import Ledger
from batchmill.maintenance.leakage import torn_groups
from batchmill.partitions.inheritance import inherited_keys, recorded_groups
from batchmill.planning.run_spec import read_spec
from batchmill.storage import Store, open_store


class Finding(NamedTuple):
    """A leak, or the reason why the partitions were not compared."""

    kind: Literal["leak", "unchecked"]
    message: str


def compare_with_source(ledger: Ledger) -> Iterator[Finding]:
    """Yield the differences from the partitions of the dataset that was the last run's manifest.

    Yields nothing if the manifest was not a dataset, or if the table has no partitions.
    """
    run = ledger.last_ended_run()
    source = "" if run is None else read_spec(ledger, run).source_dataset
    if not source:
        return
    try:
        rows = _read_columns(ledger.store, ["input", MADE_FROM, ORIGINAL_INPUT, PARTITION_COLUMN])
    except (OSError, pa.ArrowException, StoreError):
        return  # The comparison of the table with its hash has reported it.
    if not {MADE_FROM, PARTITION_COLUMN} <= {*rows.columns}:
        return
    try:
        groups = recorded_groups(source)
        table = _read_columns(open_store(source), ["input", PARTITION_COLUMN])
    except (OSError, pa.ArrowException, LedgerError, StoreError) as error:
        yield Finding(
            "unchecked",
            f"its partitions were not compared with {source}: {error}. Restore that dataset, or "
            "ignore this warning",
        )
        return
    rows = rows.drop_duplicates()
    rows["group"] = pd.Series(inherited_keys(rows, groups), rows.index, object)
    for message in torn_groups(rows):
        yield Finding("leak", message)
    if PARTITION_COLUMN in table.columns:
        for message in _not_as_in_source(rows, table, source):
            yield Finding("leak", message)


def _not_as_in_source(rows: pd.DataFrame, table: pd.DataFrame, source: str) -> Iterator[str]:
    """Yield the rows in another partition than the input from which they were made."""
    expected = (
        table.dropna(subset=[PARTITION_COLUMN])
        .drop_duplicates("input")
        .set_index("input")[PARTITION_COLUMN]
    )
    wanted = rows[MADE_FROM].map(expected)
    wrong = rows.assign(wanted=wanted)[wanted.notna() & (wanted != rows[PARTITION_COLUMN])]
    texts = wrong.astype(object).where(wrong.notna(), "none")
    for name, made_from, found, right in zip(
        texts["input"], texts[MADE_FROM], texts[PARTITION_COLUMN], texts["wanted"], strict=True
    ):
        yield f"{name} is in {found}, but {made_from} is in {right} in {source}"


def _read_columns(store: Store, names: list[str]) -> pd.DataFrame:
    """Read those columns of a dataset's table that exist. Partitions become text."""
    if not store.exists(METADATA):
        raise StoreError(store.url_of(METADATA), "there is no table")
    file = pq.ParquetFile(store.open(METADATA))
    known = [name for name in names if name in file.schema_arrow.names]
    frame: pd.DataFrame = file.read(columns=known).to_pandas()
    if PARTITION_COLUMN in frame.columns:
        # A partition from a manifest may be a number.
        frame[PARTITION_COLUMN] = pd.Series(texts_of(frame[PARTITION_COLUMN]), frame.index, object)
    return frame
