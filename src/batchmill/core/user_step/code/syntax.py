"""Texts of code. They stay the same if only comments, docstrings or the layout change."""

import ast
import dis
import linecache
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.util import resolve_name
from itertools import chain, groupby
from types import CodeType
from typing import Any

# The position is no field. `ctx` follows from the place in the tree, `kind` is the u of u"text".
_IGNORED = {"ctx", "kind", "type_comment", "type_ignores"}
_MOST_SHOWN = 60
_FUTURE_FLAGS = 0x1FF0000  # The flags of `from __future__ import ...`.
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD"}
_FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


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


def code_text(code: CodeType) -> str:
    """Return the code of a function that lives only in this process, as a text for a digest.

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
    chains: dict[str, set[tuple[str, ...]]] = {}
    name, attributes = "", []
    instructions = chain.from_iterable(map(dis.get_instructions, _codes(code)))
    for instruction in [*instructions, None]:
        if name and instruction and instruction.opname in _ATTRIBUTES:
            attributes.append(str(instruction.argval))
            continue
        if name:
            chains.setdefault(name, set()).add(tuple(attributes))
        is_lookup = instruction and instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")
        name, attributes = str(instruction.argval) if instruction and is_lookup else "", []
    return chains


def imported_names(code: CodeType, package: str) -> set[tuple[str, tuple[str, ...]]]:
    """Return the modules that a function and its inner functions import, each with a name in it."""
    imports: set[tuple[str, tuple[str, ...]]] = set()
    for part in _codes(code):
        ops = [op for op in dis.get_instructions(part) if op.opname != "EXTENDED_ARG"]
        # The two instructions before an import load its level and its names.
        for level, names, instruction in zip(ops, ops[1:], ops[2:], strict=False):
            if instruction.opname == "IMPORT_NAME" and (package or not level.argval):
                module = resolve_name("." * level.argval + instruction.argval, package)
                imports |= {(module, (name,)) for name in names.argval or ()} or {(module, ())}
    return imports


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
        nodes = [
            node
            for node in nodes
            if isinstance(node, ast.Lambda)
            and any(
                isinstance(part, ast.expr) and (part.lineno, part.col_offset) in places
                for part in ast.walk(node.body)
            )
        ]
    return nodes[0] if len(nodes) == 1 else None


@lru_cache(maxsize=64)
def _compiled(text: str, flags: int) -> tuple[ast.Module | None, frozenset[CodeType]]:
    try:
        tree = ast.parse(text)
        compiled = compile(text, "<source>", "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return None, frozenset()
    return tree, frozenset(_codes(compiled))
