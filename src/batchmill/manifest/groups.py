"""Read from a manifest which of its inputs belong together, and which partition it names."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa

from batchmill.manifest.inputs import is_missing
from batchmill.partitioning import COLUMN, Groups, Partitioning, key_of_group, key_of_input

_WHOLE = re.compile(r"(-?\d+)\.0+")


def missing_columns(frame: pd.DataFrame, partitioning: Partitioning) -> list[str]:
    """Return a fault for each column that is asked for and not there."""
    asked = {"--group-by": partitioning.group_by, "--stratify": partitioning.stratify}
    found = ", ".join(repr(str(name)) for name in frame.columns) or "none"
    return [
        f"line 1: no column {column!r}, for {option} (found: {found}). Add it, or name another."
        for option, column in asked.items()
        if column is not None and column not in frame.columns
    ]


def read_groups(frame: pd.DataFrame, names: pa.ChunkedArray, partitioning: Partitioning) -> Groups:
    """Read the groups of a manifest; `names` are those of its inputs, row for row.

    An input without a value in the group's column is a group of its own.
    """
    names = names.to_pylist()
    keys = [key_of_input(name) for name in names]
    if partitioning.group_by is not None:
        texts = _texts(frame[partitioning.group_by])
        keys = [
            key if text is None else key_of_group(text)
            for key, text in zip(keys, texts, strict=True)
        ]
    strata = None if partitioning.stratify is None else _texts(frame[partitioning.stratify])
    given = _texts(frame[COLUMN]) if COLUMN in frame.columns else [None] * len(frame)
    return Groups(
        keys=pa.array(keys, pa.string()),
        strata=None if strata is None else pa.array(strata, pa.string()),
        given=pa.array(given, pa.string()),
    )


def faults_of_groups(
    groups: Groups, partitioning: Partitioning, places: Callable[[], Sequence[str]]
) -> list[str]:
    """Return a fault for each partition that is not known, and each that would tear a group up."""
    faults = []
    first: dict[str, int] = {}
    given = groups.given.to_pylist()
    for row, name in enumerate(given):
        if name is None:
            continue
        if name not in partitioning.shares:
            known = ", ".join(partitioning.shares)
            faults.append(
                f"{places()[row]}: {COLUMN} {name!r} is none of --partition's ({known}). Correct "
                f"it, or add {name}=0: then only rows that name it are in it."
            )
            continue
        key = groups.keys[row].as_py()
        earlier = first.setdefault(key, row)
        if given[earlier] != name:
            faults.append(
                f"{places()[row]}: is in the {COLUMN} {name!r}, but of one group "
                f"({key.partition(':')[2]!r}) with {places()[earlier]}, which is in "
                f"{given[earlier]!r}. Give a group one {COLUMN}."
            )
    return faults


def _texts(column: pd.Series) -> list[str | None]:
    """Return a column's values as text, the same for each form of manifest; None where empty."""
    return [_text(value) for value in column.tolist()]


def _text(value: Any) -> str | None:
    if is_missing(value) or value is pd.NaT:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value).encode("utf-8", "replace").decode()
    # A column of whole numbers with an empty cell is one of 7.0, in a DataFrame and in its CSV.
    whole = _WHOLE.fullmatch(text)
    if whole:
        return whole[1]
    return text if text.strip() else None
