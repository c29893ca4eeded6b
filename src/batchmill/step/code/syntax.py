"""Texts of syntax trees. They stay the same if only comments, docstrings or the layout change."""

import ast
from collections.abc import Sequence
from itertools import groupby
from typing import Any

# The position is no field. `ctx` follows from the place in the tree, `kind` is the u of u"text".
_IGNORED = {"ctx", "kind", "type_comment", "type_ignores"}
_MOST_SHOWN = 60


def dump(node: object) -> str:
    """Return a text that is the same for the same code, in each version of Python.

    `ast.dump` is not used, because its text differs between versions. Docstrings and `pass` are
    left out.

    >>> dump(ast.parse("def f(): 'Text.'; return 1")) == dump(ast.parse("def f(): return (1)  # !"))
    True
    """
    if isinstance(node, ast.Constant):
        # The characters that repr() escapes depend on the version of Python.
        return f"{type(node.value).__name__}:{node.value!a}"
    if isinstance(node, list):
        items = [f"{text}," for text in map(dump, node)]
        return f"[{''.join(items)}]"
    if not isinstance(node, ast.AST):
        return ascii(node)
    fields = []
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(node, ast.JoinedStr):
            value = _joined(node.values)
        elif isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            value = effective(value)
        if name not in _IGNORED and value is not None and value != []:
            fields.append(f"{name}={dump(value)},")
    return f"{type(node).__name__}({''.join(fields)})"


def shown_value(node: ast.expr) -> str | None:
    """Return a literal as a short text. None for a long literal or another expression.

    >>> shown_value(ast.parse("(1, -2)", mode="eval").body)
    '(1, -2)'
    """
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    # Not the value's repr(), because a set has another order in each process.
    text = ast.unparse(node)
    return text if len(text) <= _MOST_SHOWN else None


def effective(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return the statements that have an effect: all but docstrings, other constants and `pass`."""
    return [
        statement
        for statement in body
        if not isinstance(statement, ast.Pass)
        and not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
    ]


def _joined(values: list[Any]) -> list[Any]:
    """Return the parts of an f-string, with neighbouring texts as one."""
    parts: list[Any] = []
    for is_text, group in groupby(values, lambda part: isinstance(part, ast.Constant)):
        if not is_text:
            parts += group
        elif text := "".join(part.value for part in group):
            parts.append(ast.Constant(text))
    return parts
