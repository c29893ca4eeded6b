"""The type of the rows that a step declares as its result: check rows, and type their columns.

A step declares it with its return annotation: a TypedDict, NamedTuple, dataclass or pydantic model,
or a list or iterator of these.
"""

import dataclasses
import datetime
import enum
import inspect
import types
import typing
from collections import abc
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any, get_args, get_origin, get_type_hints

from batchmill.core.user_step.calls import called_on
from batchmill.core.user_step.params import hints_of

# The name of the type of a column in Arrow, by the type that a step declares.
_COLUMNS: Mapping[type, str] = {bool: "bool", int: "int64", float: "float64", str: "string"}
_LISTS = (list, tuple, set, frozenset)
# A step that returns one of these returns several rows.
_SEVERAL = (
    *(list, abc.Iterator, abc.Iterable, abc.Generator, abc.Sequence),
    *(abc.AsyncIterator, abc.AsyncIterable, abc.AsyncGenerator),
)
# The types that a JSON value can be checked against. pydantic knows many more.
_CHECKED = (
    *(bool, int, float, str, list, tuple, set, frozenset, dict, type(None)),
    *(datetime.date, datetime.time, datetime.timedelta, enum.Enum),
)
_LIST = "list:"


class RowTypeError(ValueError):
    """A row does not have the type that its step declares."""


@dataclass(frozen=True)
class DeclaredRows:
    """The declared type of a step's rows.

    Args:
        row: A TypedDict, NamedTuple, dataclass or pydantic model.
    """

    row: Any

    @cached_property
    def columns(self) -> dict[str, str]:
        """The Arrow type of each column that has one, such as "int64" or "list:float32"."""
        kinds = {name: _column(hint) for name, hint in _hints(self.row).items()}
        return {name: kind for name, kind in kinds.items() if kind}

    def check(self, text: str) -> None:
        """Check rows.

        Args:
            text: The rows as JSON.

        Raises:
            RowTypeError: A row has other keys or values than declared.
        """
        import pydantic

        try:
            self._adapter.validate_json(text, strict=True)
        except pydantic.ValidationError as error:
            raise RowTypeError(self._explained(error.errors(include_url=False))) from None

    def _explained(self, errors: list[Any]) -> str:
        first = errors[0]
        number, *path = first["loc"]
        key = ".".join(map(str, path)) or "the row"
        more = f" ({len(errors) - 1} more)" if len(errors) > 1 else ""
        name = self.row.__name__
        if first["type"] == "extra_forbidden":
            return f"row {number} has the key {key!r}, which {name} does not declare{more}."
        if first["type"] == "missing":
            return f"row {number} has no {key!r}, which {name} declares{more}."
        said = first["msg"].removeprefix("Input should be ")
        return f"row {number}: {key!r} is {first['input']!r}; {name} declares {said}{more}."

    @cached_property
    def _adapter(self) -> Any:
        import pydantic

        config = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=True)
        required = getattr(self.row, "__required_keys__", None)
        fields: dict[str, Any] = {}
        for number, (name, hint) in enumerate(_hints(self.row).items()):
            default = ... if required is None or name in required else None
            # Any name can be a key, but not the name of a field.
            fields[f"field_{number}"] = (_plain(hint), pydantic.Field(default, alias=name))
        model: Any = pydantic.create_model("Row", __config__=config, **fields)
        return pydantic.TypeAdapter(list[model])

    def __reduce__(self) -> tuple[Any, ...]:
        return DeclaredRows, (self.row,)


def declared_rows(target: Any, kind: str) -> DeclaredRows | None:
    """Return the type that a step declares for its rows.

    Args:
        target: The step.
        kind: Its kind, as in `Step`.

    Returns:
        The type. None if there is no return annotation, or another one.
    """
    row = _row_of(_returned(target, kind))
    if row is None:
        return None
    try:
        _hints(row)
    except NameError:
        return None  # Only type checkers import a name of its annotations, as in `hints_of`.
    return DeclaredRows(row)


def _returned(target: Any, kind: str) -> Any:
    """Return the annotation of a step's result; None without a usable one."""
    if hasattr(target, "process_batch"):
        return None
    function = target if kind == "function" else target.__getitem__
    while hasattr(function, "func"):  # a functools.partial
        function = function.func
    if not inspect.isroutine(function):
        function = called_on(function)
    return hints_of(function).get("return")


def _row_of(hint: Any) -> Any:
    """Return the type of one row, from the annotation of a result."""
    members = [member for member in get_args(hint) if member is not type(None)]
    if get_origin(hint) in (typing.Union, types.UnionType):
        return _row_of(members[0]) if len(members) == 1 else None
    if get_origin(hint) in _SEVERAL and members:
        hint = members[0]
    return hint if _is_row(hint) else None


def _is_row(hint: Any) -> bool:
    return isinstance(hint, type) and (
        typing.is_typeddict(hint)
        or dataclasses.is_dataclass(hint)
        or (issubclass(hint, tuple) and hasattr(hint, "_fields"))
        or hasattr(hint, "model_fields")
    )


def _hints(row: Any) -> dict[str, Any]:
    hints = get_type_hints(row, include_extras=True)
    qualifiers = (typing.Required, typing.NotRequired)
    return {
        name: get_args(hint)[0] if get_origin(hint) in qualifiers else hint
        for name, hint in hints.items()
    }


def _dtype(hint: Any) -> str | None:
    """Return the dtype of an annotated numpy array, such as NDArray[np.float32]."""
    import numpy as np

    if get_origin(hint) is not np.ndarray:
        return None
    try:
        return str(np.dtype(get_args(get_args(hint)[1])[0]))
    except (TypeError, IndexError):  # For example, np.ndarray[Any, Any] names no dtype.
        return None


def _plain(hint: Any) -> Any:
    """Return the type of a value after it was converted to JSON."""
    import numpy as np

    origin = get_origin(hint)
    if origin is np.ndarray:
        return _array(_dtype(hint))
    if origin in (typing.Union, types.UnionType):
        return typing.Union[tuple(_plain(member) for member in get_args(hint))]  # noqa: UP007
    if not isinstance(hint, type) or origin is not None:
        return hint
    if hint.__name__ == "File" or issubclass(hint, PurePath):
        return str
    known = {np.bool_: bool, np.integer: int, np.floating: float, np.str_: str}
    for kind, plain in known.items():
        if issubclass(hint, kind):
            return plain
    return hint if issubclass(hint, _CHECKED) or _is_row(hint) else Any


def _array(dtype: str | None) -> Any:
    """Return the type of nested lists whose values fit the dtype of an array."""
    import numpy as np
    import pydantic
    import pydantic_core

    members: dict[str, set[type]] = {
        "b": {bool}, "i": {int}, "u": {int}, "f": {int, float}, "U": {str}
    }  # fmt: skip
    fitting = members.get(np.dtype(dtype).kind) if dtype else None
    if fitting is None:
        return list
    fitting = fitting | {type(None)}  # A missing number.

    def check(values: list[Any]) -> list[Any]:
        with suppress(ValueError):  # Lists of several lengths may be no array.
            # As numbers, NumPy would make floats of 1 and 2**63.
            if {*map(type, np.asarray(values, object).flat)} <= fitting:
                return values
        text = "Input should be an array of {dtype}"
        raise pydantic_core.PydanticCustomError("array", text, {"dtype": dtype})

    return typing.Annotated[list, pydantic.AfterValidator(check)]


def _column(hint: Any) -> str:
    """Return the Arrow type of a declared column. Empty: it is guessed from the values."""
    if get_origin(hint) in (typing.Union, types.UnionType):
        members = [member for member in get_args(hint) if member is not type(None)]
        return _column(members[0]) if len(members) == 1 else ""
    if get_origin(hint) is typing.Annotated:
        return _column(get_args(hint)[0])
    dtype = _dtype(hint)
    if dtype:
        return _LIST + dtype
    plain = _plain(hint)
    if get_origin(plain) in _LISTS:
        members = [member for member in get_args(plain) if member is not Ellipsis]
        inner = {_column(member) for member in members}
        return _LIST + inner.pop() if len(inner) == 1 and inner <= {*_COLUMNS.values()} else ""
    return _COLUMNS.get(plain, "") if isinstance(plain, type) else ""
