"""Identify a version of a step by its reference, its sources, its version and its parameters.

Results of a step with another identity are out of date. The sources include the module that defines
the step, and all modules of the user that it imports. They do not include the standard library and
installed packages, except the package that contains the step.
"""

import ast
import inspect
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, ModuleSpec
from typing import Any

from batchmill.digests import digest
from batchmill.errors import StepError
from batchmill.step.import_reference import is_reference

# Folders of installed packages. Modules elsewhere are the user's own.
_INSTALLED = tuple(
    os.path.realpath(sysconfig.get_path(name)) + os.sep
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_INSTALLED_FOLDERS = {"site-packages", "dist-packages"}
_OURS = __name__.partition(".")[0]
_OUR_STEPS = f"{_OURS}.steps."


def describe_step(ref: str, target: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a step by plain values. Two steps with the same description are the same step.

    Args:
        ref: The step's reference.
        target: The step.
        params: Its checked parameters.

    Returns:
        `ref`, `version` (the step's attribute, if any), `params`, and `sources` (the digest of each
        module's text).

    Raises:
        StepError: The version has values other than numbers, text, lists, dicts and sets.
    """
    sources = sources_of(ref, target)
    for name in getattr(target, "references", ()):
        if is_reference(str(params.get(name))):  # The parameter names code.
            sources |= sources_of(params[name])
    return {
        "ref": ref,
        "version": _version_of(ref, target),
        "params": {name: _described(value) for name, value in sorted(params.items())},
        "sources": dict(sorted(sources.items())),
    }


def _version_of(ref: str, target: Any) -> str | int | float | None:
    version = getattr(target, "version", None)
    if isinstance(version, str | int | float):
        return version
    if not isinstance(version, tuple | list | dict | set | frozenset):
        return None  # It may be a property or a method.
    try:
        return _json_of(version)
    except ValueError as error:
        raise StepError(
            f"step {ref}: its version {version!r} cannot be compared with later versions. Use "
            "numbers, text, lists, dicts and sets."
        ) from error


def identity_of(description: Mapping[str, Any]) -> str:
    """Return the digest of a step's description."""
    return digest("step", _described(description))


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Describe what changed between two descriptions.

    Args:
        before: The earlier description.
        now: The current description.

    Returns:
        One line per change.
    """
    if before["ref"] != now["ref"]:
        # The params and modules of two steps cannot be compared.
        return [f"the step changed from {before['ref']} to {now['ref']}"]
    lines = []
    if before["version"] != now["version"]:
        lines.append(f"the step's version changed from {before['version']} to {now['version']}")
    if before.get("order") != now.get("order"):
        lines.append("the manifest's rows or their order changed")
    for name in sorted(before["params"].keys() | now["params"].keys()):
        old, new = (side["params"].get(name) for side in (before, now))
        if new is None:
            lines.append(f"the parameter {name} was removed")
        elif old is None:
            lines.append(f"the parameter {name} was added with the value {new}")
        elif old != new:
            lines.append(f"the parameter {name} changed from {old} to {new}")
    for name in sorted(before["sources"].keys() | now["sources"].keys()):
        if name not in now["sources"]:
            lines.append(f"the step no longer imports {name}")
        elif name not in before["sources"]:
            lines.append(f"the step now imports {name}")
        elif before["sources"][name] != now["sources"][name]:
            lines.append(f"the source of {name} changed")
    return lines


def _described(value: Any) -> str:
    """Return a value as JSON, the same in every process. Without a JSON form, its type is used."""
    return _json_of(value, fallback=lambda odd: str(type(odd)))


def _json_of(value: Any, fallback: Callable[[Any], Any] | None = None) -> str:
    """Return a value as JSON, the same in every process. Raises ValueError without a fallback."""
    from pydantic_core import to_json

    return to_json(_with_sorted_sets(value), fallback=fallback).decode()


def _with_sorted_sets(value: Any) -> Any:
    """Return a value whose sets are sorted lists. A set of texts has no fixed order."""
    if isinstance(value, set | frozenset):
        return sorted((_with_sorted_sets(item) for item in value), key=_described)
    if isinstance(value, dict):
        return {key: _with_sorted_sets(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_sorted_sets(item) for item in value]
    return value


def sources_of(ref: str, target: Any = None) -> dict[str, str]:
    """Return the digests of the sources behind a reference, by module. Imports nothing."""
    function = target.func if isinstance(target, partial) else target
    own = {ref.partition(":")[0]}
    # An object's class may belong to torch, such as Subset. Its module is not the step's.
    if inspect.isroutine(function) or inspect.isclass(function):
        own |= {getattr(inspect.getmodule(function), "__name__", "")} - {""}
    # Modules of batchmill count only below batchmill.steps: the engine does not change results.
    tops = {name.partition(".")[0] for name in own}
    waiting, sources = sorted(own), {}
    while waiting:
        name = waiting.pop()
        path = source_file(name)
        if name in sources or not path or not (name in own or _is_users(name, path, tops)):
            continue
        with open(path, "rb") as file:
            text = file.read()
        sources[name] = _digest_of_text(text)
        if path.endswith(tuple(SOURCE_SUFFIXES)):
            waiting += _imported(text, name, is_package=path.endswith("__init__.py"))
    return dict(sorted(sources.items()))


def digest_of_source(path: str) -> str:
    """Return the digest of a source file. Raises OSError."""
    with open(path, "rb") as file:
        return _digest_of_text(file.read())


def _digest_of_text(text: bytes) -> str:
    return digest("source", text.decode("utf-8", "surrogateescape"))


def source_file(name: str) -> str | None:
    """Return the source file or compiled file of a module. Import nothing. None without a file."""
    if name.partition(".")[0] in sys.stdlib_module_names:
        return None
    path = getattr(sys.modules.get(name), "__file__", None)
    if path is None:
        spec = _spec(name)
        path = spec.origin if spec else None
    suffixes = (*SOURCE_SUFFIXES, *EXTENSION_SUFFIXES)
    return path if path and path.endswith(suffixes) and os.path.isfile(path) else None


def _spec(name: str) -> ModuleSpec | None:
    """Find a module as the import system does, but without importing its parents.

    The parents may be slow to import, or may need something that this machine does not have.
    """
    if name in sys.modules:
        return getattr(sys.modules[name], "__spec__", None)
    parent, _, last = name.rpartition(".")
    folders = _folders(parent) if parent else None
    if parent and not folders:
        return None  # The name is an attribute of a module, or the module is not installed.
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
    try:
        specs = (finder.find_spec(name, folders) for finder in finders)
        return next((spec for spec in specs if spec), None)
    except KeyError:
        # The import system looks up the parent of a package without __init__.py in sys.modules.
        spec = ModuleSpec(name, None, is_package=True)
        inner = (os.path.join(folder, last) for folder in folders or ())
        spec.submodule_search_locations = [folder for folder in inner if os.path.isdir(folder)]
        return spec
    except (ImportError, ValueError, AttributeError):
        return None


def _folders(name: str) -> list[str] | None:
    """Return the folders of a package. None for another module."""
    if name in sys.modules:
        folders = getattr(sys.modules[name], "__path__", None)
    else:
        spec = _spec(name)
        folders = spec.submodule_search_locations if spec else None
    return None if folders is None else list(folders)


def _is_users(name: str, path: str, tops: set[str]) -> bool:
    top = name.partition(".")[0]
    if top == _OURS:
        return top in tops and name.startswith(_OUR_STEPS)
    if top in tops:
        return True
    place = os.path.realpath(path)
    return not (place.startswith(_INSTALLED) or _INSTALLED_FOLDERS & {*place.split(os.sep)})


def _imported(text: bytes, module: str, *, is_package: bool) -> Iterator[str]:
    """Yield the names that a module's source imports, anywhere in it."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return  # The file was edited after it was imported.
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_parents(alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            yield from _with_parents(base)
            # A name that is imported from a package may be a module.
            yield from (f"{base}.{alias.name}" for alias in node.names if base)
        elif isinstance(node, ast.Call):
            yield from _imported_by_call(node)


def _imported_by_call(node: ast.Call) -> Iterator[str]:
    """Yield the names that `importlib.import_module("name")` or a similar call imports."""
    function = getattr(node.func, "attr", getattr(node.func, "id", None))
    if function in ("import_module", "__import__") and node.args:
        name = getattr(node.args[0], "value", None)
        # The package of a relative name is not known without running the code.
        if isinstance(name, str) and not name.startswith("."):
            yield from _with_parents(name)


def _with_parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        yield ".".join(parts[:end])
