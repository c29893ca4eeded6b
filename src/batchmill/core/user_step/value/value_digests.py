"""Digests of a step that lives only in this process, and of all values that it uses."""

import copyreg
import functools
import hashlib
import inspect
import os
import pickle
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, get_args

from batchmill.core.digests import digest
from batchmill.core.security.redaction import names_a_secret
from batchmill.core.user_step.calls import called_on
from batchmill.core.user_step.code.files import is_users, source_file
from batchmill.core.user_step.code.module import Value
from batchmill.core.user_step.code.reachable import Definition
from batchmill.core.user_step.code.syntax import code_text, imported_names, used_names
from batchmill.core.user_step.params import hints_of
from batchmill.core.user_step.value.class_members import members_of
from batchmill.errors import StepError

_MOST_SHOWN = 60
_ATOMS = (type(None), bool, int, float, complex, str, type(...), type(NotImplemented))
_BUFFERS = (bytes, bytearray, pickle.PickleBuffer)
_REMEDY = (
    "Create it inside the function, give the step its path as a parameter, or give its class a "
    "method __fingerprint__() that returns a text."
)


class ValueCode(NamedTuple):
    """The code and the values of a step.

    Attributes:
        definitions: By key, the functions, classes and named values that the step uses. A key is
            `:` and the path.
        imports: The values in the user's modules that the step uses, with the path to the code
            that uses them.
        others: The modules of libraries that it uses.
    """

    definitions: dict[str, Definition]
    imports: dict[Value, tuple[str, ...]]
    others: set[str]


def value_code(label: str, target: object) -> ValueCode:
    """Find the functions and values that a step uses, and compute their digests.

    Equal code and equal values have equal digests in each process.

    Args:
        label: The name of the step, for messages.
        target: The step.

    Returns:
        The digests.

    Raises:
        StepError: A value has no digest, for example an open file. The message has its path.
    """
    walk = _Walk(label)
    path = (getattr(target, "__name__", None) or type(target).__name__,)
    walk.visit(target, path)
    walk.visit_hints(target, path)
    return ValueCode(dict(sorted(walk.found.items())), walk.imports, walk.others)


def is_importable(target: Any) -> bool:
    """Return whether another process gets a function or class by its name in its module."""
    module = sys.modules.get(getattr(target, "__module__", None) or "")
    if module is None or module.__name__ == "__main__":
        return False
    if module.__name__ == "builtins":
        return True  # Some classes of Python have no name there, such as that of None.
    value: Any = module
    for name in getattr(target, "__qualname__", "").split("."):
        value = getattr(value, name, None)
    if value is target or (inspect.ismethod(target) and value == target):
        return True  # Each look-up of a class method makes a new object.
    if not (inspect.isfunction(target) and inspect.isfunction(value)) or target.__closure__:
        return False
    # The reload of a module makes new functions, with the same variables and often the same code.
    defaults = [repr((f.__defaults__, f.__kwdefaults__)) for f in (target, value)]
    is_same = target.__code__ == value.__code__ and defaults[0] == defaults[1]
    return is_same and target.__globals__ is value.__globals__


class _Walk:
    def __init__(self, label: str) -> None:
        self.found: dict[str, Definition] = {}
        self.imports: dict[Value, tuple[str, ...]] = {}
        self.others: set[str] = set()
        self._label = label
        self._used: set[str] = set()
        self._keys: dict[int, str] = {}
        self._tokens: dict[int, str] = {}
        self._active: list[int] = []
        # An id is unique only while its object exists.
        self._kept: list[object] = []

    def visit(self, value: Any, path: tuple[str, ...]) -> str:
        """Visit the step, or a value that code uses by its name. Return its token."""
        if isinstance(value, types.FunctionType | type) and not is_importable(value):
            return self._token(value, path)
        key, path = self._key(path, type(value).__name__)
        token = self._token(value, path)
        self.found[key] = Definition(digest("value", token), " > ".join(path), _shown(path, value))
        return token

    def _key(self, path: tuple[str, ...], name: str) -> tuple[str, tuple[str, ...]]:
        """Return a new key for a path. A value inside another one gets its name as well."""
        while (key := f":{' > '.join(path)}") in self._used:
            path = (*path, name)
        self._used.add(key)
        return key, path

    def _token(self, value: Any, path: tuple[str, ...]) -> str:
        """Return a text that is equal for equal values."""
        if type(value) in _ATOMS:
            return f"{type(value).__name__} {value!a}"
        if type(value) in _BUFFERS:
            # An array without items, such as one of shape (0, 3), cannot be cast.
            data = memoryview(value)
            return f"bytes {hashlib.blake2b(data.cast('B') if data.nbytes else b'').hexdigest()}"
        if id(value) in self._keys:
            return f"@{self._keys[id(value)]}"
        if id(value) in self._active:
            return f"cycle {len(self._active) - self._active.index(id(value))}"
        if id(value) not in self._tokens:
            self._kept.append(value)
            self._active.append(id(value))
            parts = self._parts(value, path)
            self._active.pop()
            if isinstance(parts, str):
                return parts
            self._tokens[id(value)] = digest("value", *parts)
        return self._tokens[id(value)]

    def _parts(self, value: Any, path: tuple[str, ...]) -> Iterable[str] | str:
        """Return the parts of a value, or its whole token."""
        name = type(value).__name__
        if isinstance(value, types.ModuleType):
            return self._module(value, (), path)
        if value is os.environ:
            return "import os:environ"  # Its variables differ in each process.
        if isinstance(value, types.FunctionType | type) and is_importable(value):
            return self._imported(value, path)
        if isinstance(value, types.FunctionType):
            return self._function(value, path)
        if isinstance(value, type):
            return self._class(value, path)
        if type(value) in (list, tuple):
            return [name, *(self._token(item, path) for item in value)]
        if type(value) in (set, frozenset):
            return [name, *sorted(self._token(item, path) for item in value)]
        if type(value) is dict:
            return [name, *(self._token(part, path) for item in value.items() for part in item)]
        if isinstance(value, types.MethodType):
            return [name, self._token(value.__func__, path), self._token(value.__self__, path)]
        if isinstance(value, staticmethod | classmethod):
            return [name, self._token(value.__func__, path)]
        if isinstance(value, property):
            return [name, *(self._token(f, path) for f in (value.fget, value.fset, value.fdel))]
        if isinstance(value, functools.cached_property):
            return [name, self._token(value.func, path)]
        if hasattr(value, "cache_parameters"):  # A function with functools.lru_cache.
            return [name, self._token(value.__wrapped__, path), str(value.cache_parameters())]
        return self._object(value, path)

    def _object(self, value: Any, path: tuple[str, ...]) -> Iterable[str] | str:
        kind = type(value)
        if kind.__name__ == "Decorator" and kind.__module__.startswith("pydantic."):
            # It contains an address. Its function is a member of the model.
            return [kind.__name__, self._token(value.info, path)]
        fingerprint = getattr(kind, "__fingerprint__", None)
        if fingerprint:
            return [self._token(kind, path), str(fingerprint(value))]
        torch = sys.modules.get("torch")
        if torch and isinstance(value, torch.Tensor) and value.layout is torch.strided:
            # The pickle of a tensor contains an address of this process.
            return [kind.__name__, *_tensor_parts(value)]
        pandas = sys.modules.get("pandas")
        if pandas and isinstance(value, pandas.api.extensions.ExtensionArray):
            value = value.copy()  # Without the results of look-ups, which pandas keeps in it.
        try:
            # The parts that pickle would send to another process.
            reducer = copyreg.dispatch_table.get(kind)
            reduced = reducer(value) if reducer else value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise StepError(
                f"step {self._label}: {' > '.join(path)} is or contains a {kind.__name__}, "
                f"which cannot be compared between runs. {_REMEDY}"
            ) from error
        if isinstance(reduced, str):
            return f"import {getattr(value, '__module__', '')}:{reduced}"
        self._kept.append(reduced)
        # Iterators of items: a list, and a dict.
        parts = [list(p) if isinstance(p, Iterator) else p for p in reduced]
        parts[2:3] = [_without_cached(kind, state) for state in parts[2:3]]
        self._kept.append(parts)
        return [self._token(part, path) for part in parts]

    def _imported(self, value: Any, path: tuple[str, ...]) -> str:
        # The last name of the path is that of the value.
        self._use(Value(value.__module__, tuple(value.__qualname__.split("."))), path[:-1])
        return f"import {value.__module__}:{value.__qualname__}"

    def _module(
        self, module: types.ModuleType, attributes: tuple[str, ...], path: tuple[str, ...]
    ) -> str:
        self._use(Value(module.__name__, attributes), path)
        return f"module {module.__name__}"

    def _use(self, value: Value, path: tuple[str, ...]) -> None:
        file = source_file(value.module)
        if file and is_users(value.module, file, set()):
            self.imports.setdefault(value, path)
        elif file:
            self.others.add(value.module)
        elif value.attributes:  # It may be a package without __init__.py.
            name, *rest = value.attributes
            self._use(Value(f"{value.module}.{name}", tuple(rest)), path)

    def _function(self, function: types.FunctionType, path: tuple[str, ...]) -> str:
        key, path = self._begin(function, path)
        tokens = [
            code_text(function.__code__),
            self._token(function.__defaults__, path),
            self._token(function.__kwdefaults__, path),
        ]
        for name, value in sorted(function.__dict__.items()):
            if name != "__wrapped__":  # It is among the values that the function uses.
                tokens += [name, self._token(value, path)]
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in cells:
            tokens += [name, *(self._name(value, (*path, name)) for value in _contents(cell))]
        for name, chains in sorted(used_names(function.__code__).items()):
            if name in function.__globals__:
                value = function.__globals__[name]
                if isinstance(value, types.ModuleType):
                    for attributes in sorted(chains):
                        self._module(value, attributes, path)
                    tokens += [name, f"module {value.__name__}"]
                else:
                    tokens += [name, self._name(value, (*path, name))]
        package = function.__globals__.get("__package__") or ""
        for module, attributes in sorted(imported_names(function.__code__, package)):
            self._use(Value(module, attributes), path)
        return self._end(key, path, tokens)

    def visit_hints(self, step: Any, path: tuple[str, ...]) -> None:
        """Visit the classes of a step's annotations: rows are checked with them, params made."""
        while isinstance(step, functools.partial):
            step = step.func
        for called in (step, getattr(step, "__getitem__", step), called_on(step)):
            for hint in hints_of(called).values():
                self._hint(hint, path)

    def _hint(self, hint: Any, path: tuple[str, ...]) -> None:
        if isinstance(hint, type):
            self._token(hint, (*path, hint.__name__))
        for part in get_args(hint):
            self._hint(part, path)

    def _name(self, value: Any, path: tuple[str, ...]) -> str:
        """Return the token of a definition. A plain value has an entry of its own instead."""
        token = self.visit(value, path)
        return token if token.startswith("@") else ""

    def _class(self, kind: type, path: tuple[str, ...]) -> str:
        key, path = self._begin(kind, path)
        tokens = [self._token(type(kind), path), *(self._token(b, path) for b in kind.__bases__)]
        for name, value in members_of(kind):
            tokens += [name, self._token(value, (*path, name))]
        return self._end(key, path, tokens)

    def _begin(
        self, definition: types.FunctionType | type, path: tuple[str, ...]
    ) -> tuple[str, tuple[str, ...]]:
        key, path = self._key(path, definition.__name__)
        self._keys[id(definition)] = key
        return key, path

    def _end(self, key: str, path: tuple[str, ...], tokens: Iterable[str]) -> str:
        self.found[key] = Definition(digest("code", *tokens), " > ".join(path))
        return f"@{key}"


def _without_cached(kind: type, state: Any) -> Any:
    """Return a state without the values of cached properties, which follow from the others."""
    if isinstance(state, tuple):  # The attributes, and those in slots.
        return tuple(_without_cached(kind, part) for part in state)
    if not isinstance(state, dict):
        return state
    return {
        # The state of a pydantic model has its attributes in this key.
        name: _without_cached(kind, value) if name == "__dict__" else value
        for name, value in state.items()
        if not isinstance(inspect.getattr_static(kind, str(name), None), functools.cached_property)
    }


def _tensor_parts(tensor: Any) -> list[str]:
    # Also with the sign and the conjugate that torch has not applied yet.
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().flatten()
    data = plain.view(sys.modules["torch"].uint8).numpy()
    content = hashlib.blake2b(memoryview(data)).hexdigest()
    return [str(tensor.dtype), str(tuple(tensor.shape)), str(tensor.requires_grad), content]


def _contents(cell: types.CellType) -> Iterator[Any]:
    try:
        yield cell.cell_contents
    except ValueError:  # The variable has no value yet.
        return


def _shown(path: tuple[str, ...], value: Any) -> str:
    if isinstance(value, types.ModuleType):
        return value.__name__
    text = repr(value) if type(value) in _ATOMS else ""
    is_secret = names_a_secret(path[-1]) or "://" in text
    return "" if is_secret or len(text) > _MOST_SHOWN else text
