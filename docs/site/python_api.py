"""Generate the page of the Python API from signatures and docstrings."""

import inspect
from dataclasses import fields, is_dataclass
from typing import Any

from griffe import Docstring, DocstringSectionKind

import batchmill
import batchmill.errors

_TEXT = (DocstringSectionKind.text, DocstringSectionKind.admonition)
_OPENING = (
    "The names in `import batchmill`, generated from the docstrings. Only these names, "
    "[the flows](flows.md) and [the blocks](blocks.md) are public. Other names may change without "
    "notice."
)


def python_api() -> str:
    """Return the page with each name of `batchmill.__all__`, errors last."""
    values = {name: getattr(batchmill, name) for name in batchmill.__all__}
    errors = {n: v for n, v in values.items() if inspect.isclass(v) and issubclass(v, Exception)}
    pieces = ["# Python", _OPENING]
    for name in sorted(set(values) - set(errors), key=str.lower):
        pieces += _entry(name, values[name])
    tree = inspect.cleandoc(batchmill.errors.__doc__ or "")
    pieces += ["## Errors", tree]
    for name in sorted(errors):
        pieces += _entry(name, errors[name], level=3)
    return "\n\n".join(pieces) + "\n"


def _entry(name: str, value: Any, level: int = 2) -> list[str]:
    pieces = [f"{'#' * level} {name}"]
    if inspect.isclass(value):
        shown = _fields(value) or str(_own_signature(value))
        pieces.append(f"```python\nclass {name}{shown}\n```")
    else:
        pieces.append(f"```python\n{name}{_one_a_line(inspect.signature(value))}\n```")
    pieces += _described(value)
    if inspect.isclass(value) and not issubclass(value, Exception):
        for member, what in vars(value).items():
            is_method = inspect.isfunction(what)
            if member.startswith("_") or not (is_method or isinstance(what, property)):
                continue
            called = "()" if is_method else ""
            pieces.append(f"**`{name}.{member}{called}`**: " + " ".join(_described(what)))
    return pieces


def _fields(value: type) -> str:
    """Return the fields of a dataclass or NamedTuple, one per line; for other classes ''."""
    if is_dataclass(value):
        named = {field.name: field.type for field in fields(value)}
    elif hasattr(value, "_fields"):
        named = {name: value.__annotations__[name] for name in value._fields}
    else:
        return ""
    return ":\n" + "\n".join(f"    {name}: {_type(kind)}" for name, kind in named.items())


def _own_signature(value: type) -> str:
    """Return the arguments of a class, or its base if it has no own constructor."""
    if "__init__" in vars(value):
        return str(inspect.signature(value)).removesuffix(" -> None")
    return f"({value.__bases__[0].__name__})"


def _one_a_line(signature: inspect.Signature) -> str:
    """Return a signature; a long signature has one parameter per line."""
    if len(str(signature)) < 80:
        return str(signature)
    parameters = list(signature.parameters.values())
    lines = [str(parameter) for parameter in parameters]
    by_name = [parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in parameters]
    if any(by_name):
        lines.insert(by_name.index(True), "*")
    result = str(signature).rpartition(")")[2]
    return "(\n" + "".join(f"    {line},\n" for line in lines) + f"){result}"


def _type(kind: Any) -> str:
    return kind.__name__ if inspect.isclass(kind) and "[" not in str(kind) else str(kind)


def _described(value: Any) -> list[str]:
    """Return the sections of a docstring as Markdown."""
    pieces = []
    for section in Docstring(inspect.getdoc(value) or "").parse("google", warnings=False):
        if section.kind in _TEXT:
            pieces.append(str(section.value).strip())
        elif section.kind is DocstringSectionKind.examples:
            pieces += [
                text if kind in _TEXT else f"```python\n{text}\n```" for kind, text in section.value
            ]
        else:
            pieces.append(f"**{section.kind.value.capitalize()}**")
            pieces.append("\n".join(map(_item, section.value)))
    return pieces


def _item(item: Any) -> str:
    """Return a parameter, an attribute or an error with its name; a returned value without one."""
    name = getattr(item, "name", "") or item.annotation
    return f"- {f'`{name}`: ' if name else ''}{' '.join(item.description.split())}"
