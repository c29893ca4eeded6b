"""The definitions that a step reaches, each with a digest of its syntax tree. Imports nothing.

A definition is reached if the step's own code uses it, directly or through other definitions. Code
that an import runs counts too, because it may change any definition. A module whose attributes are
looked up in a way that a syntax tree does not show counts whole.
"""

import ast
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.machinery import SOURCE_SUFFIXES
from typing import NamedTuple

from batchmill.core.digests import digest
from batchmill.core.security.redaction import names_a_secret
from batchmill.core.user_step.code.files import is_users, source_file
from batchmill.core.user_step.code.module import ModuleCode, Value, bound_names, read_module
from batchmill.core.user_step.code.syntax import dump, shown_value
from batchmill.core.user_step.code.uses import Uses

# Attributes that the import system gives to each module.
_GIVEN = {"__name__", "__file__", "__doc__", "__package__", "__path__", "__spec__", "__loader__"}


class Reached(NamedTuple):
    """The code that a step reaches.

    Attributes:
        definitions: The definitions by `module:name`. The name is empty for the code that the
            module's import runs, and for a module that cannot be read as Python.
        others: The modules of libraries that it names, and of Python.
    """

    definitions: "dict[str, Definition]"
    others: set[str]


class Definition(NamedTuple):
    """A definition that a step reaches.

    Attributes:
        digest: The digest of its syntax tree.
        path: How the step reaches it: "step > helper > THRESHOLD".
        value: The value of a constant, or what an import binds, as a short text. Empty if there is
            no such text.
    """

    digest: str
    path: str
    value: str = ""


def reachable_code(
    roots: Iterable[Value], paths: Mapping[Value, Sequence[str]] | None = None
) -> Reached:
    """Find the code that is reached from some values.

    Args:
        roots: The values: attributes of modules. These modules count although they may be
            installed packages.
        paths: For roots that other code uses, the path to that code.
    """
    roots = [*roots]
    return _Walk(roots).run(paths or {})


def digests_in(module: str, names: Iterable[str], roots: Iterable[Value]) -> dict[str, str]:
    """Return digests of definitions of a module, from its present source.

    Args:
        module: The module.
        names: The names of definitions, as in `reachable_code`.
        roots: The values that `reachable_code` started from.

    Returns:
        The digests by `module:name`, without the names that the module does not define.

    Raises:
        OSError: The source cannot be read.
    """
    walk = _Walk([*roots])
    code = walk.code(module)
    if not isinstance(code, ModuleCode):
        return {f"{module}:": _opaque_digest(code)} if code is not None else {}
    return {
        f"{module}:{name}": walk.digest(code, name) if name else walk.import_digest(code)
        for name in names
        if not name or code.defines(name)
    }


class _Step(NamedTuple):
    """A value to visit. `path` leads to the code that uses it."""

    value: Value
    path: tuple[str, ...] = ()
    is_qualified: bool = False


class _Walk:
    """Visits code, nearest first, so that each definition has a shortest path."""

    def __init__(self, roots: list[Value]) -> None:
        self._roots = roots
        self._own = {root.module for root in roots}
        self._tops = {name.partition(".")[0] for name in self._own}
        # A cache of the method would be a cycle, and keep the syntax trees until a collection.
        self._codes: dict[str, ModuleCode | bytes | None] = {}
        # A statement that binds several names is part of several digests.
        self._dump = cache(dump)
        self._found: dict[str, Definition] = {}
        self._visited: set[Value] = set()
        self._to_visit: deque[_Step] = deque()
        self._imported: set[str] = set()
        self._to_import: deque[str] = deque()

    def run(self, paths: Mapping[Value, Sequence[str]]) -> Reached:
        self._to_visit += [
            _Step(root, tuple(paths.get(root, ())), root in paths) for root in self._roots
        ]
        while self._to_visit or self._to_import:
            if self._to_visit:
                self._visit(self._to_visit.popleft())
            else:
                self._visit_import(self._to_import.popleft())
        others = {name for name in self._imported if self.code(name) is None}
        return Reached(dict(sorted(self._found.items())), others)

    def _visit(self, step: _Step) -> None:
        module, attributes = step.value
        if step.value in self._visited:
            return
        self._visited.add(step.value)
        self._import(module)
        code = self.code(module)
        if code is None and attributes and source_file(module) is None:
            # A package without __init__.py.
            self._to_visit.append(
                _Step(Value(f"{module}.{attributes[0]}", attributes[1:]), *step[1:])
            )
        if not isinstance(code, ModuleCode):
            return
        if not attributes:
            names = [*code.definitions, *code.imports]
            self._to_visit += [step._replace(value=Value(module, (name,))) for name in names]
            return
        name, *rest = attributes
        submodule = f"{module}.{name}"
        if code.defines(name):
            self._visit_definition(code, name, tuple(rest), step)
        elif code.is_package and source_file(submodule):
            self._to_visit.append(_Step(Value(submodule, tuple(rest)), step.path, True))
        elif name not in _GIVEN:
            self._to_visit.append(_Step(Value(module), step.path, True))

    def _visit_definition(
        self, code: ModuleCode, name: str, rest: tuple[str, ...], step: _Step
    ) -> None:
        path = (*step.path, f"{code.name}.{name}" if step.is_qualified else name)
        key = f"{code.name}:{name}"
        for module, attributes in code.imports.get(name, ()):
            self._to_visit.append(
                _Step(Value(module, attributes + rest), step.path, not attributes)
            )
        if key in self._found:
            return
        self._found[key] = Definition(self.digest(code, name), " > ".join(path), _shown(code, name))
        for statement in code.definitions.get(name, ()):
            self._use(statement, code, path)

    def _visit_import(self, module: str) -> None:
        """Visit the code that runs when a module is imported."""
        code = self.code(module)
        if isinstance(code, bytes):
            self._found[f"{module}:"] = Definition(_opaque_digest(code), module)
        if not isinstance(code, ModuleCode):
            return
        path = (module,)
        if code.effects:
            self._found[f"{module}:"] = Definition(
                self.import_digest(code), f"code run by importing {module}"
            )
        names = [*code.unused]
        for statement in code.effects:
            names += bound_names(statement)
            self._use(statement, code, path)
        self._to_visit += [_Step(Value(module, (name,)), path) for name in names]
        for imported in code.modules:
            self._import(imported)

    def _use(self, statement: ast.stmt, code: ModuleCode, path: tuple[str, ...]) -> None:
        uses = Uses(statement, code)
        self._to_visit += [_Step(value, path) for value in uses.values]
        for module in uses.modules:
            self._import(module)

    def _import(self, module: str) -> None:
        """Plan to visit the code that runs when a module and its parents are imported."""
        parts = module.split(".")
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            if name not in self._imported:
                self._imported.add(name)
                self._to_import.append(name)

    def code(self, module: str) -> ModuleCode | bytes | None:
        """Return a module of the user: as bytes if it is not Python, None for another module."""
        if module not in self._codes:
            self._codes[module] = self._read(module)
        return self._codes[module]

    def _read(self, module: str) -> ModuleCode | bytes | None:
        path = source_file(module)
        if path is None or not self._is_users(module):
            return None
        with open(path, "rb") as file:
            text = file.read()
        if not path.endswith(tuple(SOURCE_SUFFIXES)):
            return text
        try:
            return read_module(
                text, module, is_package=path.endswith("__init__.py"), is_users=self._is_users
            )
        except (SyntaxError, ValueError, RecursionError):
            return text  # It was edited after it was imported, for example.

    def _is_users(self, module: str) -> bool:
        path = source_file(module)
        return path is not None and (module in self._own or is_users(module, path, self._tops))

    def digest(self, code: ModuleCode, name: str) -> str:
        statements = code.definitions.get(name, ())
        imported = [_shown_import(value) for value in code.imports.get(name, ())]
        return digest("code", *map(self._dump, statements), *imported)

    def import_digest(self, code: ModuleCode) -> str:
        """Return a digest of the code that an import runs, in its order."""
        # A definition has a digest of its own, so only its place counts.
        return digest(
            "import", *(" ".join(bound_names(part)) or self._dump(part) for part in code.effects)
        )


def described(code: Mapping[str, Definition]) -> dict[str, dict[str, str]]:
    """Return definitions as JSON values."""
    return {key: {k: v for k, v in entry._asdict().items() if v} for key, entry in code.items()}


def _opaque_digest(text: bytes) -> str:
    return digest("source", text.decode("utf-8", "surrogateescape"))


def _shown(code: ModuleCode, name: str) -> str:
    """Return the value of a constant, or what an import binds. Empty without a short text."""
    if name in code.imports and name not in code.definitions:
        return ", ".join(_shown_import(value) for value in code.imports[name])
    match code.definitions[name]:
        case (ast.Assign(targets=[ast.Name()], value=value),) | (
            ast.AnnAssign(target=ast.Name(), value=ast.expr() as value),
        ):
            text = shown_value(value) or ""
            # A description is stored in the dataset, and shown.
            return "" if names_a_secret(name) or "://" in text else text
    return ""


def _shown_import(value: Value) -> str:
    return ".".join([value.module, *value.attributes])
