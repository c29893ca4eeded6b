"""Read a dataset as a manifest: its outputs become the inputs, its metadata the other columns.

`DATASET@VERSION` names an earlier version by its number or name.
"""

import os
from shlex import quote

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from batchmill.core.layout import FORMAT, MADE_FROM, ORIGINAL_INPUT
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.snapshots import Snapshot
from batchmill.core.ledger.table_metadata import TableMetadata
from batchmill.core.manifest.records import read_parquet
from batchmill.core.manifest.source import Source, fits, numbered
from batchmill.core.storage import is_url, open_store
from batchmill.core.storage.addresses import parse_address
from batchmill.core.storage.remote import FileStat
from batchmill.errors import ManifestError


def read_version(text: str, pattern: str) -> Source | None:
    """Read a version of a dataset. Returns None if the text does not name one.

    Args:
        text: DATASET@VERSION.
        pattern: The pattern that an output's name must match.

    Raises:
        OptionError: The dataset has no such version.
        StoreError: The dataset cannot be read.
        ManifestError: See `read_dataset`.
    """
    place, _, wanted = text.rpartition("@")
    if not (place and wanted) or "/" in wanted:
        return None
    place = place.rstrip("/") if is_url(place) else os.path.abspath(place)
    return read_dataset(place, pattern, wanted) if open_store(place).exists(FORMAT) else None


def read_dataset(place: str, pattern: str, wanted: str = "") -> Source:
    """Read the outputs that the table of a dataset names.

    Args:
        place: The dataset's folder or URL.
        pattern: The pattern that an output's name must match.
        wanted: The number or name of a version. Empty: the last one.

    Returns:
        One row per output, and the number of the version. Rows without an output are left out. If
        several rows name one output, the first row counts.

    Raises:
        ManifestError: The dataset has no version yet.
        OptionError: The dataset has no such version.
        LedgerError: Its table is damaged.
    """
    ledger = Ledger(open_store(place))

    def read(version: Snapshot) -> tuple[int, pa.Buffer]:
        return version.number, ledger.files.read_table(version)

    snapshots = ledger.snapshots
    last = read(snapshots.find(wanted)) if wanted else snapshots.read_last(read)
    if last is None:
        raise ManifestError(
            place, ["is a dataset without tables yet. Complete a run that writes it first."]
        )
    number, table = last
    frame = read_parquet(place, table).frame
    packed = _take_packed(frame, table)
    if MADE_FROM in frame.columns:
        frame[ORIGINAL_INPUT] = _first_inputs(frame)
    frame = frame.drop(columns=MADE_FROM, errors="ignore").rename(columns={"input": MADE_FROM})
    faults = []
    if not len(frame):
        command = f"batchmill failures {quote(place)}"
        faults = [f"is a dataset whose table has no rows. List its failed inputs: {command}"]
    elif "output" not in frame.columns:
        faults = [
            "is a dataset without files, only a table. Use the manifest of its inputs instead."
        ]
    if "output" not in frame.columns:
        frame["output"] = None
    frame = frame.rename(columns={"output": "input"}).dropna(subset="input")
    frame = frame.drop_duplicates("input")
    frame = frame[pd.Series([fits(name, pattern) for name in frame["input"]], frame.index, bool)]
    if not len(frame) and not faults:
        faults = [f"is a dataset in which no output matches {pattern!r}. Give another pattern."]
    return Source(
        name=place,
        form="dataset",
        frame=frame.reset_index(drop=True).astype({"input": object}),
        folder=place,
        locate=numbered("output", len(frame)),
        faults=faults,
        version=number,
        seen=packed,
    )


def _take_packed(frame: pd.DataFrame, table: pa.Buffer) -> dict[str, FileStat]:
    """Remove the columns with the addresses of files in packs. Return what is known of them."""
    packed = {}
    packs = TableMetadata.of(pq.read_schema(pa.BufferReader(table))).packs
    for name, column in packs.items():
        if not column:
            continue
        rows = frame[[name, column]].dropna()
        del frame[column]
        for file, address in rows.itertuples(index=False):
            place = parse_address(address)
            if place:
                # The content of an address never changes, so it is an ETag.
                packed[file] = FileStat(place.size, 0, address)
    return packed


def _first_inputs(frame: pd.DataFrame) -> pd.Series:
    """Return the first input of the chain of each row. A row may lack the columns of a chain."""
    found = frame["input"].astype(object)
    for name in (MADE_FROM, ORIGINAL_INPUT):
        if name in frame.columns:
            found = frame[name].astype(object).where(frame[name].notna(), found)
    return found
