"""Titles and bounds of flow parameters for the form in Prefect's UI."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, ParamSpec, TypeVar

from pydantic import Field, WithJsonSchema

P = ParamSpec("P")
R = TypeVar("R")

# The form shows an object that may be null as an empty field. This schema gives a JSON editor.
JSON_OBJECT = WithJsonSchema({"type": "object"})


def titled(**titles: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Give each parameter of a flow's function a title. The default is its name in words.

    >>> @titled(pattern="Only files like")
    ... def sort(input_column: str, pattern: str = "*") -> None: ...
    >>> inspect.get_annotations(sort)["input_column"].__metadata__[0].json_schema_extra
    {'title': 'Input column'}
    """

    def give(function: Callable[P, R]) -> Callable[P, R]:
        annotations = inspect.get_annotations(function)
        for name in inspect.signature(function).parameters:
            title = titles.get(name, name.replace("_", " ").capitalize())
            annotations[name] = Annotated[annotations[name], in_schema(title=title)]
        function.__annotations__ = annotations
        return function

    return give


def in_schema(**entries: Any) -> Any:
    """Return an annotation that adds entries to a parameter's JSON Schema."""
    # Prefect replaces `Field(title=...)` with the parameter's name. For a bound in the type of an
    # optional number, it reports only "0 is not valid under any of the given schemas".
    return Field(json_schema_extra=entries)
