"""Describe the columns of a dataset's table: type, range, missing values and distribution."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchmill.core.layout import METADATA
from batchmill.core.storage import Store
from batchmill.core.storage.large_tables import count_values
from batchmill.errors import StoreError

SHOWN_COLUMNS = 60
_FREQUENT = 5
_BINS = 24
# The memory does not depend on the number of rows: only this number is read at a time, and texts
# are counted only up to these limits.
_ROWS = 8192
_DIFFERENT_TEXTS, _TEXT_CHARACTERS = 10_000, 16 * 2**20


class Column(NamedTuple):
    """The description of a column.

    Attributes:
        name: Its name.
        kind: The kind of its values.
        values: The range of its numbers, or the number of its different texts.
        missing: The number of values that are empty, NaN or infinite.
        bars: The histogram of its numbers, each bar relative to the highest.
        frequent: The most frequent texts, each with the number of its rows.
    """

    name: str
    kind: str
    values: str
    missing: int
    bars: Sequence[float] = ()
    frequent: Sequence[tuple[str, int]] = ()


class Columns(NamedTuple):
    """The first columns of a table, and the number of other columns."""

    shown: Sequence[Column]
    others: int


_Read = Callable[[], Iterator[pa.Array]]


def describe_columns(store: Store) -> Columns:
    """Describe the columns of the table in a store; nothing without a readable table."""
    with suppress(OSError, pa.ArrowException, StoreError), store.open(METADATA) as file:
        table = pq.ParquetFile(file)
        fields = list(table.schema_arrow)
        shown = [_describe(table, field) for field in fields[:SHOWN_COLUMNS]]
        return Columns(shown, len(fields) - len(shown))
    return Columns([], 0)


def _describe(table: pq.ParquetFile, field: pa.Field) -> Column:
    def read() -> Iterator[pa.Array]:
        for batch in table.iter_batches(_ROWS, columns=[field.name]):
            part = batch.column(field.name)
            # Arrow has few functions for numbers with 16 bits.
            yield part.cast(pa.float32()) if pa.types.is_float16(part.type) else part

    if pa.types.is_integer(field.type):
        return _numbers(field.name, "whole number", read)
    if pa.types.is_floating(field.type):
        return _numbers(field.name, "number", read)
    if isinstance(field.type, pa.FixedShapeTensorType):
        shape = " x ".join(map(str, field.type.shape))
        return Column(field.name, f"tensor of {shape} {field.type.value_type}", "", 0)
    if pa.types.is_fixed_size_list(field.type):
        size = field.type.list_size
        return Column(field.name, f"vector of {size} {field.type.value_type}", "", 0)
    is_text = pa.types.is_string(field.type) or pa.types.is_large_string(field.type)
    kind = "text" if is_text else "true or false" if pa.types.is_boolean(field.type) else ""
    try:
        return _texts(field.name, kind or str(field.type), read)
    except pa.ArrowException:  # Its values have no text: lists, or times of an unknown zone.
        return Column(field.name, str(field.type), "", sum(part.null_count for part in read()))


def _numbers(name: str, kind: str, read: _Read) -> Column:
    missing, ends = 0, []
    for part in read():
        known = _finite(part)
        missing += len(part) - len(known)
        if len(known):
            ends += list(pc.min_max(known).as_py().values())
    if not ends:
        return Column(name, kind, "", missing)
    low, high = min(ends), max(ends)
    if low == high:
        return Column(name, kind, _number(low), missing)
    values = f"{_number(low)} to {_number(high)}"
    return Column(name, kind, values, missing, bars=_bars(read, low, high))


def _bars(read: _Read, low: float, high: float) -> list[float]:
    bins, start, end = _BINS, float(low), float(high)
    if isinstance(low, int) and high - low < _BINS:  # A bar for each whole number.
        bins, start, end = int(high - low) + 1, low - 0.5, high + 0.5
    counts = np.zeros(bins)
    # The range may be too large or too small for a float.
    with suppress(ValueError), np.errstate(over="ignore", invalid="ignore"):
        for part in read():
            counts += np.histogram(_finite(part).to_numpy(), bins, (start, end))[0]
    return [float(count) for count in counts / counts.max()] if counts.any() else []


def _finite(part: pa.Array) -> pa.Array:
    return part.filter(pc.is_finite(part))


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _texts(name: str, kind: str, read: _Read) -> Column:
    missing, is_counted = 0, True
    counts: Counter[str] = Counter()
    for part in read():
        missing += part.null_count
        if is_counted:
            counts += count_values(part.drop_null().cast(pa.string()))
            characters = sum(map(len, counts))
            is_counted = len(counts) <= _DIFFERENT_TEXTS and characters <= _TEXT_CHARACTERS
    if not is_counted:
        return Column(name, kind, f"at least {_rounded(len(counts)):,} different", missing)
    frequent = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:_FREQUENT]
    values = f"{len(counts):,} different" if len(counts) > 1 else "one value" if len(counts) else ""
    if len(counts) > _FREQUENT and frequent[0][1] == 1:
        return Column(name, kind, f"{values}, each once", missing, frequent=[])
    return Column(name, kind, values, missing, frequent=frequent)


def _rounded(count: int) -> int:
    """Round a number down to one digit."""
    power: int = 10 ** (len(str(count)) - 1)
    return count // power * power
