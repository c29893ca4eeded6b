"""The base of the groups of options: immutable models that explain what they reject."""

import ast
import difflib
import inspect
import os
import re
import sys
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from batchmill.errors import OptionError

_EXPECTED = {
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "finite_number": "a number of seconds, 0 or more",
    "bool_parsing": "true or false",
}
# The pattern for forms. Prefect's messages would print a backslash doubled.
SIZE_PATTERN = "^ *([0-9]+([.][0-9]+)? *[KMGTkmgt]?[Ii]?[Bb]?)? *$"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", re.IGNORECASE)
_FACTORS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def as_text(value: object) -> object:
    """Convert a path, a number or None to text: a Python caller may pass these."""
    if value is None:
        return ""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    # Numbers of numpy are `Real` too, but its bool is not.
    return str(value) if isinstance(value, Real) and not isinstance(value, bool) else value


def _as_list(value: object) -> object:
    """Convert a list of names or paths to a text with commas."""
    if isinstance(value, list | tuple):
        return ",".join(str(as_text(item)) for item in value)
    return as_text(value)


Text = Annotated[str, BeforeValidator(as_text)]
# A list as one text with commas. Prefect's form shows a list as separate fields.
CommaSeparated = Annotated[str, BeforeValidator(_as_list)]


def _for_forms(schema: dict[str, Any]) -> None:
    """Remove line breaks, and the null alternative of optional fields, from a schema.

    Prefect's form would show the alternative as a separate field that cannot be filled in.
    """
    for entry in schema.get("properties", {}).values():
        entry["description"] = " ".join(entry["description"].split())
        kinds = [kind for kind in entry.get("anyOf", ()) if kind != {"type": "null"}]
        if "anyOf" in entry and len(kinds) < len(entry["anyOf"]):
            del entry["anyOf"]
            entry |= kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
            if entry.get("default", ...) is None:
                del entry["default"]


# The default title of a field is its name in words.
FIELDS_IN_FORMS = ConfigDict(
    field_title_generator=lambda name, _: name.replace("_", " ").capitalize()
)


class Described:
    """The docstring below each field of a subclass is its description in a form.

    pydantic can do this itself, but compares the files of all imported modules for each class.
    That would delay each process of a run by a quarter of a second.
    """

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        path = sys.modules[cls.__module__].__file__ or ""
        for name, text in _docstrings(path).get(cls.__name__, {}).items():
            kind = cls.__annotations__[name]
            cls.__annotations__[name] = Annotated[kind, Field(description=text)]


@cache
def _docstrings(path: str) -> dict[str, dict[str, str]]:
    """Return the docstring below each field in a source file, by class and field."""
    by_class: dict[str, dict[str, str]] = {}
    for group in ast.parse(Path(path).read_bytes()).body:
        if isinstance(group, ast.ClassDef):
            fields = by_class[group.name] = {}
            for pair in pairwise(group.body):
                match pair:
                    case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                        fields[name] = inspect.cleandoc(text)
    return by_class


class Options(Described, BaseModel):
    """A group of options. It is immutable. Raises OptionError for unknown names and bad values."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", json_schema_extra=_for_forms, **FIELDS_IN_FORMS
    )

    @model_serializer(mode="wrap")
    def _without_none(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A form cannot show null. An option that may be None has None as its default.
        return {name: value for name, value in handler(self).items() if value is not None}

    @model_validator(mode="wrap")
    @classmethod
    def _explain(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(values)
        except ValidationError as error:
            raise OptionError(_explanation(cls, error)) from None


def option_name(field: str) -> str:
    """Return the name of an option on the command line.

    >>> option_name("max_failures")
    '--max-failures'
    """
    return "--" + field.replace("_", "-")


def unknown_option(name: str, known: Iterable[str]) -> str:
    """Return the message for an unknown option.

    >>> unknown_option("retrys", ["retries", "timeout"])
    'retrys: no such option. Did you mean retries?'
    """
    near = difflib.get_close_matches(name, known, 1)
    hint = f"Did you mean {near[0]}?" if near else "A parameter of the step belongs in params."
    return f"{name}: no such option. {hint}"


def _explanation(group: type[BaseModel], error: ValidationError) -> str:
    """Return a message about the first rejected option, in the wording of JSON Schema."""
    first = error.errors()[0]
    field = str(first["loc"][0]) if first["loc"] else ""
    value = first["input"]
    if first["type"] == "extra_forbidden":
        return unknown_option(field, group.model_fields)
    if first["type"] == "greater_than_equal":
        return f"{option_name(field)}: {value} is less than the minimum of {first['ctx']['ge']:g}."
    expected = _EXPECTED.get(first["type"]) or first["msg"].removeprefix("Input should be ")
    return f"{option_name(field)} {value}: expected {expected}."


def parse_size(text: str, option: str) -> int:
    """Convert a size with a unit to bytes. Raises OptionError, which names the option.

    >>> [parse_size(text, "--pack") for text in ("500M", "2G", "1.5 GiB", "1048576")]
    [524288000, 2147483648, 1610612736, 1048576]
    """
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise OptionError(f"{option} {text}: expected a size such as 2G or 500M.")
    return int(float(match[1]) * _FACTORS[match[2].upper()])
