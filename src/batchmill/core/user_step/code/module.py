"""The top level of a module: what it defines, what it imports, and which code its import runs."""

import ast
import builtins
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from batchmill.core.user_step.code.syntax import effective

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_IMPORTS = (ast.Import, ast.ImportFrom)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# Calls of these have effects that a syntax tree does not show.
_IMPURE_BUILTINS = {"exec", "eval", "setattr", "delattr", "__import__", "globals", "vars", "locals"}
_BUILTINS = frozenset(dir(builtins)) - _IMPURE_BUILTINS


class Value(NamedTuple):
    """A value that code uses: a module, or with `attributes` an attribute of the module's."""

    module: str
    attributes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModuleCode:
    """The top level of a module.

    Attributes:
        name: The module.
        is_package: True for the `__init__` of a package.
        definitions: By name, the statements that define it. Imports are not among them.
        imports: By name, what the module's imports bind to it.
        effects: The statements whose code runs when the module is imported, and may change other
            definitions. The others only define names.
        modules: The modules that the import of this one imports.
        unused: Names that are imported, although the module does not use them. Such an import
            registers something, or makes a class known to pickle.
    """

    name: str
    is_package: bool
    definitions: Mapping[str, tuple[ast.stmt, ...]]
    imports: Mapping[str, tuple[Value, ...]]
    effects: tuple[ast.stmt, ...]
    modules: tuple[str, ...]
    unused: tuple[str, ...]

    def defines(self, name: str) -> bool:
        """Return whether the module binds a name at its top level."""
        return name in self.definitions or name in self.imports


def read_module(
    text: bytes, name: str, *, is_package: bool, is_users: Callable[[str], bool]
) -> ModuleCode:
    """Read the top level of a module.

    Args:
        text: Its source.
        name: Its name.
        is_package: True for the `__init__` of a package.
        is_users: Returns whether a module is the user's own.

    Returns:
        Its definitions, imports and effects.

    Raises:
        SyntaxError: The source is not Python.
        ValueError: The source contains a null byte.
        RecursionError: The source is nested too deeply.
    """
    try:
        tree = ast.parse(text)
    except SystemError:
        # Python 3.11 confuses two threads that parse, and a thread that prints a traceback parses:
        # https://github.com/python/cpython/issues/106905.
        tree = ast.parse(text)
    package = name if is_package else name.rpartition(".")[0]
    statements = list(_executed(tree.body))
    definitions: dict[str, list[ast.stmt]] = {}
    imports: dict[str, list[Value]] = {}
    modules: list[str] = []
    for statement in statements:
        for inner in _in_module(statement):
            if isinstance(inner, _IMPORTS):
                modules += imported_modules(inner, package)
                for bound, value in bound_by_import(inner, package):
                    imports.setdefault(bound, []).append(value)
        if not isinstance(statement, _IMPORTS):
            for bound in sorted({*bound_names(statement)}):
                definitions.setdefault(bound, []).append(statement)
    effects = _Effects(definitions, imports, is_users)
    return ModuleCode(
        name=name,
        is_package=is_package,
        definitions={bound: tuple(nodes) for bound, nodes in definitions.items()},
        imports={bound: tuple(dict.fromkeys(values)) for bound, values in imports.items()},
        effects=tuple(statement for statement in statements if effects.has(statement)),
        modules=tuple(dict.fromkeys(modules)),
        unused=() if is_package else _unused(tree, imports),
    )


def bound_by_import(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[tuple[str, Value]]:
    """Yield the names that an import binds, and their values. The name of `import *` is `*`."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            # `import a.b` binds only `a`.
            name = alias.name if alias.asname else alias.name.partition(".")[0]
            yield alias.asname or name, Value(name)
        return
    base = _base(node, package)
    for alias in node.names:
        yield alias.asname or alias.name, Value(base, (alias.name,))


def imported_modules(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[str]:
    """Yield the modules that an import imports. A name after `from x import` may be a module."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = _base(node, package)
    yield base
    yield from (f"{base}.{alias.name}" for alias in node.names if base and alias.name != "*")


def _base(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    above = parts[: len(parts) - node.level + 1]
    return ".".join([*above, *([node.module] if node.module else [])])


def _executed(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that an import executes, without those that have no effect."""
    for statement in effective([*body]):
        if isinstance(statement, ast.If) and _is_false_on_import(statement.test):
            yield from _executed(statement.orelse)
        else:
            yield statement


def _is_false_on_import(test: ast.expr) -> bool:
    match test:
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
            return True
        case ast.Compare(
            left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[ast.Constant("__main__")]
        ):
            return True
    return False


def _in_module(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and its descendants, without the bodies of functions."""
    yield node
    if not isinstance(node, (*_FUNCTIONS, ast.Lambda)):
        for child in ast.iter_child_nodes(node):
            yield from _in_module(child)


def bound_names(node: ast.AST) -> Iterator[str]:
    """Yield the names that a statement at the top level of a module binds there."""
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        yield node.name
        return
    match node:
        case ast.Import() | ast.ImportFrom():
            yield from (name for name, _ in bound_by_import(node, ""))
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            yield name
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
            yield name
        case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
            yield name
    if not isinstance(node, (ast.Lambda, *_COMPREHENSIONS)):
        for child in ast.iter_child_nodes(node):
            yield from bound_names(child)


def _unused(tree: ast.Module, imports: Iterable[str]) -> tuple[str, ...]:
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    exported = {
        node.value
        for statement in tree.body
        if "__all__" in bound_names(statement)
        for node in ast.walk(statement)
        if isinstance(node, ast.Constant)
    }
    return tuple(sorted(set(imports) - used - exported))


@dataclass(frozen=True)
class _Effects:
    """Decides which statements may change more than the names that they define.

    A call, a decorator or a subclass may register something. Calls of builtins and of the standard
    library are trusted if no value of the module is among their arguments.
    """

    definitions: Mapping[str, list[ast.stmt]]
    imports: Mapping[str, list[Value]]
    is_users: Callable[[str], bool]

    @cached_property
    def _repeated(self) -> set[str]:
        """The names that several statements define. Their order counts."""
        counts = Counter({name: len(nodes) for name, nodes in self.definitions.items()})
        counts.update(self.imports.keys())
        return {name for name, count in counts.items() if count > 1}

    def has(self, statement: ast.stmt) -> bool:
        """Return whether a statement at the top level of the module may have an effect."""
        if self._repeated.intersection(bound_names(statement)):
            return True
        if isinstance(statement, _IMPORTS):
            return getattr(statement, "module", None) == "__future__"
        return self._runs(statement, set())

    def _runs(self, node: ast.stmt, local: set[str]) -> bool:
        """Return whether a statement runs code with effects. `local`: names of the class body."""
        decorators = getattr(node, "decorator_list", ())
        if not all(self._is_standard(part, local) for part in decorators):
            return True
        if isinstance(node, _FUNCTIONS):
            defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
            return not all(self._is_plain(part, local) for part in defaults)
        if isinstance(node, ast.ClassDef):
            inner = local.union(*(bound_names(part) for part in node.body))
            return (
                bool(node.keywords)
                or any(self._is_of_user(part) for part in node.bases)
                or any(self._runs(part, inner) for part in effective(node.body))
            )
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            is_definition = all(map(_binds_only_names, targets))
            return not (is_definition and (node.value is None or self._is_plain(node.value, local)))
        return type(node).__name__ != "TypeAlias"  # A node since Python 3.12.

    def _is_plain(self, node: ast.expr, local: set[str]) -> bool:
        """Return whether an expression only makes a value."""
        calls = (ast.Call, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)
        is_call = any(isinstance(part, calls) for part in _in_module(node))
        return not is_call or self._is_standard(node, local)

    def _is_standard(self, node: ast.expr, local: set[str]) -> bool:
        """Return whether an expression uses only builtins and the standard library."""
        parts = [*_in_module(node)]
        if any(isinstance(part, ast.Lambda) for part in parts):
            return False
        names = [part for part in parts if isinstance(part, ast.Name)]
        bound = {part.id for part in names if isinstance(part.ctx, ast.Store)}
        return all(map(self._is_library, {part.id for part in names} - bound - local))

    def _is_library(self, name: str) -> bool:
        """Return whether a name is a builtin or imported from the standard library."""
        if name in self.definitions:
            return False
        if name not in self.imports:
            return name in _BUILTINS
        tops = {value.module.partition(".")[0] for value in self.imports[name]}
        return tops <= sys.stdlib_module_names

    def _is_of_user(self, base: ast.expr) -> bool:
        """Return whether a base class may be the user's. It may register its subclasses."""
        names = {part.id for part in ast.walk(base) if isinstance(part, ast.Name)}
        values = [value for name in names for value in self.imports.get(name, ())]
        return bool(names.intersection(self.definitions)) or any(
            self.is_users(".".join(value[:1] + value.attributes[:end]))
            for value in values
            for end in (0, 1)
        )


def _binds_only_names(target: ast.expr) -> bool:
    return not any(isinstance(part, ast.Attribute | ast.Subscript) for part in ast.walk(target))
