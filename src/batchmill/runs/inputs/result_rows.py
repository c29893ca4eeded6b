"""Converts the result of a step to rows of the metadata table."""

import dataclasses
import enum
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Set
from datetime import timedelta
from typing import Any

import orjson

from batchmill.core.layout import INPUT_COLUMN, PARTITION_COLUMN

# Rows of one input are held in memory and in the ledger: a day of one-second clips is 15 MiB.
MAX_ROWS_BYTES = 32 * 2**20

# Each key is a column of the table, and each level a level of the column's type. A table with many
# more could not be written.
MAX_KEYS, MAX_LEVELS = 1000, 64

# Bytes up to this length may be text, as in the EXIF data of a picture.
_TEXT_BYTES = 1000

# The columns that batchmill fills in. A step's row must not replace them. The second set is for
# runs with partitions.
RESERVED_KEYS = frozenset({INPUT_COLUMN})
RESERVED_WITH_PARTITIONS = RESERVED_KEYS | {PARTITION_COLUMN}

Row = dict[str, Any]


class File:
    """A file that a step wrote, as the value of a key of its row.

    Args:
        path: The path of the file, relative to the step's folder `out`.
    """

    __slots__ = ("path",)

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)

    def __repr__(self) -> str:
        return f"File({self.path!r})"


_PLAIN = frozenset({bool, int, str, type(None)})
_DETACHED = _PLAIN | {float, File}
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def rows_of(result: object, reserved: Set[str] = RESERVED_KEYS) -> list[Row]:
    """Convert a step's result to metadata rows with plain values, and files.

    A mapping, NamedTuple, dataclass or pydantic model gives one row. A list of these, or a
    generator, gives one row for each item. None gives no row. Any other result gives one row with
    the column `value`.

    Args:
        result: The result.
        reserved: The keys that no row may have.

    Raises:
        ValueError: A row has a reserved key, too many keys, or two keys with the same text.
        TypeError: A row has a value that no table can hold.

    >>> rows_of({"words": 3})
    [{'words': 3}]
    >>> rows_of(["sim", "imp"])
    [{'value': ['sim', 'imp']}]
    """
    if result is None:
        return []
    if isinstance(result, Iterator):
        # A generator may change the lists and arrays of an item for its next item.
        return [as_row(item, reserved) for item in result if item is not None]
    if isinstance(result, list) and all(fields_of(item) is not None for item in result):
        return [as_row(item, reserved) for item in result]
    return [as_row(result, reserved)]


def encode_rows(rows: Iterable[Row]) -> str:
    """Write rows of plain values as JSON text. Raises ValueError if the text is too long."""
    data = _as_json(list(rows))
    if len(data) > MAX_ROWS_BYTES:
        raise ValueError(
            f"the metadata takes {len(data) / 2**20:,.0f} MiB, more than {MAX_ROWS_BYTES >> 20} "
            "MiB. Write large results to a file in `out`, and name the file in a row."
        )
    return data.decode()


def _as_json(rows: list[Row]) -> bytes:
    """Write plain values as JSON, with the faster of two libraries if possible."""
    try:
        data = orjson.dumps(rows)
        if b"null" not in data:
            return data
    except orjson.JSONEncodeError:  # orjson rejects surrogates and integers of more than 64 bits.
        pass
    # orjson writes NaN as null, so the standard library must write it. The standard library also
    # accepts lone surrogates. Files and tables do not, so `encode` replaces them.
    return _JSON.encode(rows).encode("utf-8", "replace")


def fields_of(value: Any) -> Row | None:
    """Return the fields of a mapping, NamedTuple, dataclass or pydantic model. None for others."""
    # Most values are a dict. The other checks take ten times as long.
    if type(value) is dict or isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        fields: Row = value._asdict()
        return fields
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if hasattr(type(value), "model_fields"):  # A pydantic model.
        # Not `dict(value)`: a model may have an own `__iter__`, and yields cached properties.
        named = {name: getattr(value, name) for name in type(value).model_fields}
        return named | (value.model_extra or {})
    return None


def as_row(value: Any, reserved: Set[str]) -> Row:
    """Convert one item of a step's result to a row, as `rows_of` does."""
    fields = fields_of(value)
    row = {"value": value} if fields is None else _with_text_keys(fields)
    if len(row) > MAX_KEYS:
        raise ValueError(
            f"a row has {len(row):,} keys. At most {MAX_KEYS:,} are allowed, because each key is a "
            "column. Give several rows, or write the data to a file in `out`."
        )
    hidden = reserved & row.keys()
    if hidden:
        raise ValueError(
            f"a row has the key {sorted(hidden)[0]!r}, which batchmill fills in itself. Rename it."
        )
    # Converting a value may call code of the step, so this belongs to the step's time.
    return {
        key: item if type(item) in _DETACHED else _plain(item, key) for key, item in row.items()
    }


def _with_text_keys(record: Row) -> Row:
    """Return a record with its keys as text. Raises ValueError if two keys have the same text."""
    if all(type(key) is str and key.isascii() for key in record):
        return record
    # Tables do not accept lone surrogates, so they become "?".
    named = {str(key).encode("utf-8", "replace").decode(): record[key] for key in record}
    if len(named) < len(record):
        raise ValueError(
            f"two keys of a row have the same text ({', '.join(map(repr, record))}). Rename one."
        )
    return named


def _plain(value: Any, where: str, level: int = 1) -> Any:
    """Convert a value to JSON types. Accepts numpy and torch values, paths, dates and enums.

    `where` is its key, with the keys of the dicts that it is in.
    """
    if type(value) in _PLAIN:
        return value
    if level > MAX_LEVELS:
        raise ValueError(
            f"the value of {where[:80]!r} has more than {MAX_LEVELS} levels of lists and dicts. "
            "Write it to a file in `out`, and name the file in a row."
        )
    if isinstance(value, enum.Enum):
        return _plain(value.value, where, level)
    if isinstance(value, int | str):  # A subclass, such as a numpy string.
        return int(value) if isinstance(value, int) else str(value)
    if isinstance(value, float):
        return float(value)
    if type(value).__name__ in ("NAType", "NaTType"):  # pandas' missing values
        return None
    fields = fields_of(value)
    if fields is not None:
        record = _with_text_keys(fields)
        return {key: _plain(item, f"{where}.{key}", level + 1) for key, item in record.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value) if isinstance(value, set | frozenset) else value
        return [_plain(item, where, level + 1) for item in items]
    if hasattr(value, "tolist"):  # numpy's and torch's arrays and scalars
        return _plain(_listed(value, where), where, level)
    if isinstance(value, timedelta) and not hasattr(value, "isoformat"):  # pandas' has one.
        return value.total_seconds()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "__fspath__"):
        return os.fsdecode(value)  # The `str` of an entry of `os.scandir` is not its path.
    if hasattr(value, "__float__"):  # A fraction, a Decimal, or a number of another library
        return float(value)
    if isinstance(value, bytes):
        return _text(value, where)
    if isinstance(value, File):
        raise TypeError(f"{where!r} has a File in a list or dict. Give each file a key of the row.")
    raise _unknown_type(value, where)


def _text(value: bytes, where: str) -> str:
    """Convert bytes to text. Raises TypeError if they are long, or are no printable UTF-8."""
    text = value.rstrip(b"\0").decode("utf-8", "replace")
    if len(value) > _TEXT_BYTES or not "".join(text.split()).isprintable() or "\ufffd" in text:
        raise _unknown_type(value, where)
    return text


def _unknown_type(value: Any, where: str) -> TypeError:
    return TypeError(
        f"the value of {where!r} has the type {type(value).__name__}, which no table can hold. "
        "Use numbers, text, lists or dicts. Write other data to a file in `out`."
    )


def _listed(value: Any, where: str) -> Any:
    """Convert an array or a scalar of numpy or torch to Python types."""
    kind = getattr(getattr(value, "dtype", None), "kind", None)
    if kind in ("M", "m"):
        if value.ndim:
            return list(value)
        time = value[()]
        if time != time:  # NaT
            return None
        return _instant(time) if kind == "M" else _seconds(time, where)
    listed = value.tolist()
    if type(listed) is not type(value):
        return listed
    # Python has no type with the precision of np.longdouble.
    if kind == "f":
        return float(value)
    raise _unknown_type(value, where)


def _instant(value: Any) -> str:
    """Return a np.datetime64 as ISO text. Its `tolist` gives a number for nanoseconds."""
    moment = value.tolist()
    if isinstance(moment, int):
        microseconds = value.astype("datetime64[us]")
        # Years above 9999 and parts of a microsecond have no Python type.
        moment = microseconds.tolist() if microseconds == value else value
    return moment.isoformat() if hasattr(moment, "isoformat") else str(value)


def _seconds(value: Any, where: str) -> float:
    """Return a np.timedelta64 in seconds."""
    try:
        return float(value / type(value)(1, "s"))
    except TypeError as error:  # Months and years have no fixed length.
        raise _unknown_type(value, where) from error
