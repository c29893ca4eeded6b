"""A dataset as a manifest: its outputs are the inputs, its metadata the other columns."""

import pandas as pd
import pyarrow as pa

from batchmill.errors import ManifestError
from batchmill.manifest.records import read_parquet
from batchmill.manifest.source import Source, fits, numbered

# The dataset's own inputs: the new one has inputs of its own.
MADE_FROM = "made_from"


def read_dataset(place: str, pattern: str, table: bytes | None) -> Source:
    """Read the outputs that a dataset's table names; None: it has no table yet.

    Rows without an output are left out; a file that several rows name has the first one's columns.
    """
    if table is None:
        raise ManifestError(
            place, ["is a dataset without tables yet. Let a run over it come to its end."]
        )
    frame = read_parquet(place, pa.BufferReader(table)).frame
    frame = frame.drop(columns=MADE_FROM, errors="ignore").rename(columns={"input": MADE_FROM})
    faults = []
    if "output" not in frame.columns:
        frame["output"] = None
        faults = ["is a dataset without files, only a table. Name its own inputs as the manifest."]
    frame = frame.rename(columns={"output": "input"}).dropna(subset="input")
    frame = frame.drop_duplicates("input")
    frame = frame[pd.Series([fits(name, pattern) for name in frame["input"]], frame.index, bool)]
    if not len(frame) and not faults:
        faults = [f"is a dataset in which no output fits the pattern {pattern!r}."]
    return Source(
        name=place,
        form="dataset",
        frame=frame.reset_index(drop=True).astype({"input": object}),
        folder=place,
        locate=numbered("output", len(frame)),
        faults=faults,
    )
