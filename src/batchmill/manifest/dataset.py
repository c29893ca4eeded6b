"""Read a dataset as a manifest: its outputs become the inputs, its metadata the other columns."""

import pandas as pd
import pyarrow as pa

from batchmill.errors import ManifestError
from batchmill.layout import MADE_FROM, ORIGINAL_INPUT
from batchmill.manifest.records import read_parquet
from batchmill.manifest.source import Source, fits, numbered


def read_dataset(place: str, pattern: str, table: bytes | None) -> Source:
    """Read the outputs that a dataset's metadata table names.

    Args:
        place: The dataset's folder or URL.
        pattern: The pattern that an output's name must match.
        table: The content of its metadata table. None if there is no table yet.

    Returns:
        One row per output. Rows without an output are left out. If several rows name one output,
        the first row counts.

    Raises:
        ManifestError: The dataset has no table yet.
    """
    if table is None:
        raise ManifestError(
            place, ["is a dataset without tables yet. Complete a run that writes it first."]
        )
    frame = read_parquet(place, pa.BufferReader(table)).frame
    if MADE_FROM in frame.columns:
        frame[ORIGINAL_INPUT] = _first_inputs(frame)
    frame = frame.drop(columns=MADE_FROM, errors="ignore").rename(columns={"input": MADE_FROM})
    faults = []
    if "output" not in frame.columns:
        frame["output"] = None
        faults = [
            "is a dataset without files, only a table. Use the manifest of its inputs instead."
        ]
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
    )


def _first_inputs(frame: pd.DataFrame) -> pd.Series:
    """Return the first input of the chain of each row. A row may lack the columns of a chain."""
    found = frame["input"].astype(object)
    for name in (MADE_FROM, ORIGINAL_INPUT):
        if name in frame.columns:
            found = frame[name].astype(object).where(frame[name].notna(), found)
    return found
