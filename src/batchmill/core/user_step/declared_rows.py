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
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pydantic

from batchmill.core.user_step.calls import called_on
from batchmill.core.user_step.params import hints_of

# An integer with more bits would make the column text, in the rows of all inputs.
_INT64 = Annotated[int, pydantic.Field(ge=-(2**63), lt=2**63)]
_UINT64 = Annotated[int, pydantic.Field(ge=0, lt=2**64)]
_DURATION = datetime.timedelta | float  # In seconds.
# The name of the type of a column in Arrow, by the type of its values in JSON.
_COLUMNS: Mapping[Any, str] = {
    bool: "bool", _INT64: "int64", _UINT64: "uint64", float: "float64", str: "string",
    Path: "string",
}  # fmt: skip
_LISTS = (list, tuple, set, frozenset)
# A step that returns one of these returns several rows.
_SEVERAL = (
    *(list, abc.Iterator, abc.Iterable, abc.Generator, abc.Sequence),
    *(abc.AsyncIterator, abc.AsyncIterable, abc.AsyncGenerator),
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
        model: Any = _model(self.row, ())
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
    """Return the annotations of the fields of a row."""
    hints = get_type_hints(row, include_extras=True)
    names: Iterable[str] = getattr(row, "model_fields", getattr(row, "_fields", hints))
    if dataclasses.is_dataclass(row):
        # The annotations of class variables, of `InitVar` and of `KW_ONLY` are no fields.
        names = [field.name for field in dataclasses.fields(row)]
    return {name: hint if _is_known(hint := hints.get(name, Any)) else Any for name in names}


def _is_known(hint: Any, outer: tuple[Any, ...] = ()) -> bool:
    """Return whether no type alias in an annotation contains itself, or has a name as its text.

    `outer` are the annotations that contain it.
    """
    meant = _meant(hint)
    if isinstance(meant, str | typing.ForwardRef) or any(hint is other for other in outer):
        return False
    origin, parts = get_origin(meant), get_args(meant)
    # The other parts are values.
    types_in = parts[: {typing.Literal: 0, Annotated: 1}.get(origin)]
    return all(_is_known(part, (*outer, hint)) for part in types_in)


def _meant(hint: Any) -> Any:
    """Return the annotation that a NewType, a type alias, or a qualifier such as Final means."""
    qualifiers = (typing.Required, typing.NotRequired, typing.Final)
    named = getattr(hint, "__supertype__", getattr(hint, "__value__", hint))
    meant = get_args(hint)[0] if get_origin(hint) in qualifiers else named
    return hint if meant is hint else _meant(meant)


def _dtype(hint: Any) -> str | None:
    """Return the dtype of an annotated numpy array, such as NDArray[np.float32]."""
    import numpy as np

    if get_origin(hint) is not np.ndarray:
        return None
    try:
        return str(np.dtype(get_args(get_args(hint)[1])[0]))
    except (TypeError, IndexError):  # For example, np.ndarray[Any, Any] names no dtype.
        return None


def _model(row: Any, outer: tuple[Any, ...]) -> Any:
    """Return a model of a row after it was converted to JSON."""
    settings = row.model_config if hasattr(row, "model_fields") else {}
    allows = settings.get("extra") == "allow"
    required = getattr(row, "__required_keys__", None)
    fields: dict[str, Any] = {}
    for number, (name, hint) in enumerate(_hints(row).items()):
        default = ... if required is None or name in required else None
        try:
            plain = _plain(hint, (*outer, row))
            pydantic.TypeAdapter(plain)
        except (pydantic.PydanticUserError, TypeError):
            plain = Any  # For example, a class of the user with type arguments.
        # Any name can be a key, but not the name of a field.
        fields[f"field_{number}"] = (plain, pydantic.Field(default, alias=name))
    config = pydantic.ConfigDict(extra="allow" if allows else "forbid")
    return pydantic.create_model("Row", __config__=config, **fields)


def _plain(hint: Any, outer: tuple[Any, ...] = ()) -> Any:
    """Return the type of a value after it was converted to JSON.

    `outer` are the rows that contain it.
    """
    import numpy as np

    hint = _meant(hint)
    origin, members = get_origin(hint), get_args(hint)
    if origin is np.ndarray:
        return _array(_dtype(hint))
    if origin is typing.Literal or isinstance(hint, enum.EnumMeta):
        values = tuple(getattr(choice, "value", choice) for choice in members or hint)
        if not all(isinstance(value, str | int | float | None) for value in values):
            return Any  # JSON changes them, such as tuples.
        return typing.Literal[values] if members else hint
    if origin is Annotated:
        plain = _plain(members[0], outer)
        # The fields of a model have other names, so a discriminator is not found.
        rules = [rule for rule in members[1:] if getattr(rule, "discriminator", None) is None]
        meant = _meant(members[0])
        is_other = plain in (Any, _DURATION) or get_origin(meant) is np.ndarray or _is_row(meant)
        return plain if is_other or not rules else Annotated[plain, *rules]
    if origin in (typing.Union, types.UnionType):
        return typing.Union[tuple(_plain(member, outer) for member in members)]  # noqa: UP007
    if origin is not None:
        inner = tuple(_plain(member, outer) for member in members)
        return origin[inner] if inner else origin
    if not isinstance(hint, type):
        return hint
    if _is_row(hint):
        return Any if hint in outer else _model(hint, outer)
    if hint.__name__ == "File":
        return str
    same = (datetime.datetime, datetime.date, datetime.time, *_LISTS, dict, type(None))
    known: list[tuple[Any, Any]] = [
        (PurePath, Path),
        ((bool, np.bool_), bool),
        ((datetime.timedelta, np.timedelta64), _DURATION),
        (np.uint64, _UINT64),
        ((int, np.integer), _INT64),
        ((float, np.floating), float),
        (str, str),
        *((kind, kind) for kind in same),
    ]
    # pydantic knows more types, but accepts some of them only as objects, not as JSON.
    return next((plain for kinds, plain in known if issubclass(hint, kinds)), Any)


def _array(dtype: str | None) -> Any:
    """Return the type of nested lists whose values fit the dtype of an array."""
    import numpy as np
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

    return Annotated[list, pydantic.AfterValidator(check)]


def _column(hint: Any) -> str:
    """Return the Arrow type of a declared column. Empty: it is guessed from the values."""
    hint = _meant(hint)
    if get_origin(hint) in (typing.Union, types.UnionType):
        members = [member for member in get_args(hint) if member is not type(None)]
        return _column(members[0]) if len(members) == 1 else ""
    if get_origin(hint) is Annotated:
        return _column(get_args(hint)[0])
    dtype = _dtype(hint)
    if dtype:
        return _LIST + dtype
    if get_origin(hint) in _LISTS:
        inner = {_column(member) for member in get_args(hint) if member is not Ellipsis}
        return _LIST + inner.pop() if len(inner) == 1 and inner <= {*_COLUMNS.values()} else ""
    plain = _plain(hint)
    # Not a look-up: annotations can contain values without a hash.
    return next((kind for made, kind in _COLUMNS.items() if made == plain), "")
