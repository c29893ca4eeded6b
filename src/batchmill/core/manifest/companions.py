"""Look up the companions of inputs: further files that columns of the manifest name.

A mask is a companion of its image, and a transcript one of its recording.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core.manifest.check_inputs import refused_names, resolve_names
from batchmill.core.manifest.file_stats import FILES, MISSING_SIZE, stat_files
from batchmill.core.manifest.source import Source
from batchmill.core.storage.fingerprints import SeenFile
from batchmill.core.table_cells import is_missing


def check_companions(
    source: Source, columns: Sequence[str], root: str, faults: list[str], *, confined: bool
) -> dict[str, pa.Table]:
    """Resolve the companions of each input, and look up their sizes and times.

    Several inputs may have the same companion. A cell may be empty.

    Args:
        source: The manifest as it was read.
        columns: The columns that name companions.
        root: The folder or URL that relative companions are relative to.
        faults: One sentence per fault is added, with its line.
        confined: True if each companion must lie below `root`.

    Returns:
        A table for each file column, with the columns of FILES. A row is null if its cell is empty.
        Valid only without a fault.

    Raises:
        StoreError: A store does not respond.
    """
    tables = {}
    for column in columns:
        if column not in source.frame.columns:
            known = ", ".join(repr(str(name)) for name in source.frame.columns)
            faults.append(
                f"no column {column!r} (found: {known}). Rename the column, or correct "
                "--file-columns."
            )
            continue
        tables[column], wrong = _look_up(source, column, root, confined=confined)
        faults += [f"{source.places[row]}: {text}" for row, text in sorted(wrong.items())]
    return tables


def companion_rows(
    companions: Mapping[str, pa.Table], count: int
) -> Iterator[dict[str, SeenFile | None]]:
    """Yield the companions of each input by column, None for an empty cell.

    Args:
        companions: The tables of `check_companions`, or the same rows of each.
        count: The number of inputs.
    """
    files = {
        column: [
            SeenFile(*row) if row[0] is not None else None
            for row in zip(*(table[name].to_pylist() for name in FILES.names), strict=True)
        ]
        for column, table in companions.items()
    }
    for row in range(count):
        yield {column: seen[row] for column, seen in files.items()}


def lack_companions(companions: Mapping[str, pa.Table]) -> pa.ChunkedArray:
    """Return which of the inputs name a companion that does not exist."""
    masks = (pc.equal(table["size"], MISSING_SIZE) for table in companions.values())
    return reduce(pc.or_, (mask.fill_null(False) for mask in masks))


def _look_up(
    source: Source, column: str, root: str, *, confined: bool
) -> tuple[pa.Table, dict[int, str]]:
    """Return the table of a file column, and its faults by row."""
    cells = source.frame[column]
    given = [
        row
        for row, cell in enumerate(cells)
        if not (is_missing(cell) or (isinstance(cell, str) and not cell.strip()))
    ]
    faults: dict[int, str] = {}
    names, _ = resolve_names(cells.iloc[given], root, faults, confined=confined, may_be_blank=False)
    # Several inputs may share a companion, which is looked up once.
    once = names.unique()
    wrong: dict[int, str] = {}
    looked_up = stat_files(once, root, wrong, source.seen)
    place = pc.index_in(names, value_set=once)
    # A name with a fault is null, and has no other fault.
    faults |= {row: wrong[at] for row, at in enumerate(place.to_pylist()) if at in wrong}
    if not faults:
        faults = refused_names(names, root)
    rows = np.full(len(cells), -1)
    rows[given] = place.to_numpy(zero_copy_only=False)
    table = looked_up.take(pa.array(rows, mask=rows < 0))
    return table, {given[row]: text for row, text in faults.items()}
