"""What the form in Prefect's UI needs to know about a flow's parameters: titles and bounds."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, ParamSpec, TypeVar

from pydantic import Field, WithJsonSchema

P = ParamSpec("P")
R = TypeVar("R")

# An object that may also be null is a field that cannot be filled in: this one is a JSON editor.
JSON_OBJECT = WithJsonSchema({"type": "object"})


def titled(**titles: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Give each parameter of a flow's function a title: its name in words, or the one given here.

    >>> @titled(pattern="Only files like")
    ... def sort(input_column: str, pattern: str = "*") -> None: ...
    >>> inspect.get_annotations(sort)["input_column"].__metadata__[0].json_schema_extra
    {'title': 'Input column'}
    """

    def give(function: Callable[P, R]) -> Callable[P, R]:
        annotations = inspect.get_annotations(function)
        for name in inspect.signature(function).parameters:
            title = titles.get(name, name.replace("_", " ").capitalize())
            annotations[name] = Annotated[annotations[name], _in_schema(title=title)]
        function.__annotations__ = annotations
        return function

    return give


def at_least(least: int) -> Any:
    """Let the form and the API refuse a smaller number, in the words of the engine's error."""
    return _in_schema(minimum=least)


def _in_schema(**entries: Any) -> Any:
    # A field's own title is overridden by Prefect with the parameter's name; and a bound in the
    # type of an optional number is told as "0 is not valid under any of the given schemas".
    return Field(json_schema_extra=entries)
