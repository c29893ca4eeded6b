"""The cells of tables that pandas has read: which are empty, and what text the others hold."""

import re
from typing import Any

import pandas as pd

_WHOLE = re.compile(r"(-?\d+)\.0+")


def is_missing(value: object) -> bool:
    """Return whether a cell is empty: None, NA or NaN."""
    return value is None or value is pd.NA or (isinstance(value, float) and value != value)


def texts_of(column: pd.Series) -> list[str | None]:
    """Return a column's values as text, the same for every manifest format.

    Args:
        column: The column of a manifest or table.

    Returns:
        The texts. None for an empty cell.
    """
    return [_text(value) for value in column.tolist()]


def _text(value: Any) -> str | None:
    if is_missing(value) or value is pd.NaT:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value).encode("utf-8", "replace").decode()
    # pandas turns a column of whole numbers with an empty cell into floats: 7 becomes 7.0.
    whole = _WHOLE.fullmatch(text)
    if whole:
        return whole[1]
    return text if text.strip() else None
