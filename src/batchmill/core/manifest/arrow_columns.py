"""Convert the columns of a pandas DataFrame to Arrow, and tensors to lists."""

import json
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from batchmill.core.table_cells import is_missing


def to_arrow_table(frame: pd.DataFrame) -> pa.Table:
    """Convert a DataFrame to an Arrow table that Parquet and CSV can hold.

    Args:
        frame: The columns to convert. Column names become text.

    Returns:
        A table with the same rows. Lists and dicts become JSON text. A column whose values have no
        common type becomes text.
    """
    return pa.table({str(name): _to_arrow_array(frame[name]) for name in frame.columns})


def tensors_as_lists(table: pa.Table) -> pa.Table:
    """Return a table whose tensors are nested lists, for formats that have no tensors."""
    for number, field in enumerate(table.schema):
        if isinstance(field.type, pa.FixedShapeTensorType):
            values = table.column(number).combine_chunks().storage.flatten()
            for length in reversed(field.type.shape):
                values = pa.FixedSizeListArray.from_arrays(values, length)
            table = table.set_column(number, field.name, values)
    return table


def _to_arrow_array(values: pd.Series) -> pa.Array | pa.ChunkedArray:
    try:
        column = pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return _to_text_array(values.tolist())
    kind = column.type
    given = values.tolist() if values.dtype == object else []
    given = [None if value is pd.NaT else value for value in given]
    # Arrow would drop the times of datetimes among dates, and the time zones of some datetimes.
    if pa.types.is_temporal(kind) and len({*map(_moment, given)} - {None}) > 1:
        return _to_text_array(given)
    if pa.types.is_dictionary(kind) and pa.types.is_primitive(kind.value_type):
        # Categories that are numbers stay numbers.
        column, kind = column.cast(kind.value_type), kind.value_type
    if kind == pa.time64("ns"):
        # Neither Python nor pandas has times of day with nanoseconds.
        try:
            return column.cast(pa.time64("us"))
        except pa.ArrowInvalid:
            return column.cast(pa.string())
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return column.cast(pa.string())
    is_plain = pa.types.is_string(kind) or pa.types.is_null(kind) or pa.types.is_primitive(kind)
    if is_plain or pa.types.is_decimal(kind):
        return column
    if isinstance(values.dtype, pd.PeriodDtype):
        # In Arrow, a period is the number of periods since 1970.
        return _to_text_array(values.astype(object).where(values.notna(), None).tolist())
    if given and all(is_missing(value) or isinstance(value, dict | list) for value in given):
        # Arrow would give each dict the keys of all others, and each list the type of all others.
        return _to_text_array(given)
    if isinstance(kind, pa.FixedShapeTensorType):
        column = tensors_as_lists(pa.table({"": column})).column(0)
    return _to_text_array(column.to_pylist())


def _moment(value: Any) -> tuple[bool, bool] | None:
    """Return whether a value has a date and a time, and whether it has a time zone."""
    if is_missing(value):
        return None
    return isinstance(value, datetime), getattr(value, "tzinfo", None) is not None


def _to_text_array(values: list[Any]) -> pa.Array:
    return pa.array(
        [None if is_missing(value) else _to_text(value) for value in values], pa.string()
    )


def _to_text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, dict | list):
        value = json.dumps(_with_nulls(value), default=_to_plain, ensure_ascii=False)
    # Arrow text must be UTF-8: lone surrogates become "?".
    return str(value).encode("utf-8", "replace").decode()


def _with_nulls(value: Any) -> Any:
    """Return a list or dict with None for each missing value, because JSON has no NaN or NaT."""
    if isinstance(value, dict):
        keys = (key.decode("utf-8", "replace") if isinstance(key, bytes) else key for key in value)
        return dict(zip(keys, map(_with_nulls, value.values()), strict=True))
    if isinstance(value, list | tuple):
        return [_with_nulls(item) for item in value]
    return None if is_missing(value) or value is pd.NaT else value


def _to_plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)
