"""Titles and groups of flow parameters for the form in Prefect's UI."""

import inspect
from collections.abc import Callable, Collection
from inspect import Parameter
from typing import Annotated, Any, ParamSpec, TypeVar

from pydantic import Field, WithJsonSchema

from batchmill.core.options.job_options import JobSettings
from batchmill.core.options.validation import Options

P = ParamSpec("P")
R = TypeVar("R")

# Few runs need these groups.
_RARE_GROUPS = ("run", "confinement")
# The form shows an object that may be null as an empty field. This schema gives a JSON editor.
JSON_OBJECT = WithJsonSchema({"type": "object"})


def titled(
    *, without: Collection[str] = (), **titles: str
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Give each parameter of a flow's function a title. The default is its name in words.

    A parameter `**groups` becomes one parameter for each group of options. Those that most runs
    need are before the function's own keywords, and the others are last.

    Args:
        without: The groups that the flow does not have.
        **titles: Titles by parameter.

    >>> @titled(without=["run"], pattern="Only files like")
    ... def sort(input_column: str, *, pattern: str = "*", **groups: object) -> None: ...
    >>> list(inspect.signature(sort).parameters)
    ['input_column', 'failures', 'inputs', 'execution', 'partitions', 'pattern', 'confinement']
    """

    def give(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        declared = signature.parameters.values()
        named = [p for p in declared if p.kind is not Parameter.VAR_KEYWORD]
        groups = JobSettings().parameters() if len(named) < len(declared) else {}
        optional = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=group, annotation=type(group))
            for name, group in groups.items()
            if name not in without
        ]
        parameters = sorted([*optional, *named], key=lambda p: (p.kind, p.name in _RARE_GROUPS))
        signature = signature.replace(parameters=[*map(with_title, parameters)])
        function.__signature__ = signature  # type: ignore[attr-defined]
        return function

    def with_title(parameter: Parameter) -> Parameter:
        kind, name = parameter.annotation, parameter.name
        entries = {"title": titles.get(name, name.replace("_", " ").capitalize())}
        if isinstance(kind, type) and issubclass(kind, Options):
            entries["description"] = (inspect.getdoc(kind) or "").partition("\n")[0]
        return parameter.replace(annotation=Annotated[kind, in_schema(**entries)])

    return give


def in_schema(**entries: Any) -> Any:
    """Return an annotation that adds entries to a parameter's JSON Schema."""
    # Prefect replaces `Field(title=...)` with the parameter's name. For a bound in the type of an
    # optional number, it reports only "0 is not valid under any of the given schemas".
    return Field(json_schema_extra=entries)
