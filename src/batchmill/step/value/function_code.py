"""The code of a function that lives only in this process, as a text for a digest."""

import ast
import dis
import linecache
import sys
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType

from batchmill.step.code.syntax import dump

_FUTURE_FLAGS = 0x1FF0000  # The flags of `from __future__ import ...`.
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD"}
_FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def code_text(code: CodeType) -> str:
    """Return a text that stays the same if only comments, docstrings or the layout change.

    This is the syntax tree, if the source is known. Python may know another source than the code
    has, for example after a file was edited. So the source is compiled again and compared. Without
    a source, the text has the instructions, which differ between versions of Python.
    """
    node = _node_of(code)
    return dump(node) if node else f"{sys.version_info[:2]} {_raw(code)}"


def used_names(code: CodeType) -> dict[str, set[tuple[str, ...]]]:
    """Return the global names that a function and its inner functions look up.

    Returns:
        By name, the attributes that directly follow it: `{"np": {("linalg", "norm")}}`.
    """
    found: dict[str, set[tuple[str, ...]]] = {}
    name, attributes = "", []
    for instruction in [*_all_instructions(code), None]:
        if name and instruction and instruction.opname in _ATTRIBUTES:
            attributes.append(str(instruction.argval))
            continue
        if name:
            found.setdefault(name, set()).add(tuple(attributes))
        is_lookup = instruction and instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")
        name, attributes = str(instruction.argval) if instruction and is_lookup else "", []
    return found


def _all_instructions(code: CodeType) -> Iterator[dis.Instruction]:
    for part in _codes(code):
        yield from dis.get_instructions(part)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _codes(const)


def _raw(code: CodeType) -> str:
    consts = [
        _raw(const) if isinstance(const, CodeType) else _const(const) for const in code.co_consts
    ]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    return f"{code.co_code.hex()} {code.co_exceptiontable.hex()} {consts} {names} {counts}"


def _const(value: object) -> str:
    if isinstance(value, frozenset):
        return f"frozenset {sorted(map(_const, value))}"
    if isinstance(value, tuple):
        return f"tuple {[*map(_const, value)]}"
    return f"{type(value).__name__} {value!a}"


def _node_of(code: CodeType) -> _FunctionNode | None:
    """Return the syntax tree of a function. None if its source is not known."""
    linecache.checkcache(code.co_filename)
    text = "".join(linecache.getlines(code.co_filename))
    tree, compiled = _compiled(text, code.co_flags & _FUTURE_FLAGS)
    if tree is None or code not in compiled:
        return None
    nodes = [
        node
        for node in ast.walk(tree)
        if isinstance(node, _FunctionNode)
        and getattr(node, "name", "<lambda>") == code.co_name
        and min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        == code.co_firstlineno
    ]
    if len(nodes) > 1:  # Several lambdas on one line.
        places = {(line, column) for line, _, column, _ in code.co_positions()}
        bodies = ((node, getattr(node, "body", None)) for node in nodes)
        nodes = [
            node
            for node, body in bodies
            if isinstance(body, ast.expr)
            and any((part.lineno, part.col_offset) in places for part in _expressions(body))
        ]
    return nodes[0] if len(nodes) == 1 else None


def _expressions(node: ast.expr) -> list[ast.expr]:
    return [part for part in ast.walk(node) if isinstance(part, ast.expr)]


@lru_cache(maxsize=64)
def _compiled(text: str, flags: int) -> tuple[ast.Module | None, frozenset[CodeType]]:
    try:
        tree = ast.parse(text)
        compiled = compile(text, "<source>", "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return None, frozenset()
    return tree, frozenset(_codes(compiled))
