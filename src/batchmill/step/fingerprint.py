"""What makes a step this step: its reference, its source, its version and its params.

Results of a step with another identity are not this step's. The source is that of the module that
defines it and of all modules of the user's that these import; the standard library and installed
packages are left out, but for the package that the step itself is in.
"""

import ast
import importlib.util
import inspect
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.machinery import SOURCE_SUFFIXES
from typing import Any

from batchmill.digests import digest
from batchmill.step.import_reference import is_reference

# Where packages are installed; what lies elsewhere is the user's own.
_INSTALLED = tuple(
    os.path.realpath(sysconfig.get_path(name)) + os.sep
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_INSTALLED_FOLDERS = {"site-packages", "dist-packages"}
_OURS = __name__.partition(".")[0]
_OUR_STEPS = f"{_OURS}.steps."


def describe_step(ref: str, target: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a step by plain values; two with the same description are the same step.

    `sources` has the digest of each module's text; `version` is the target's attribute, if any.
    """
    version = getattr(target, "version", None)
    sources = _sources(ref, target)
    for name in getattr(target, "references", ()):
        if is_reference(str(params.get(name))):  # A parameter that names code, as `ref` does.
            sources |= sources_of(params[name])
    return {
        "ref": ref,
        "version": version if isinstance(version, str | int | float) else None,
        "params": {name: _described(value) for name, value in sorted(params.items())},
        "sources": dict(sorted(sources.items())),
    }


def identity_of(description: Mapping[str, Any]) -> str:
    """Return the digest of a step's description."""
    return digest("step", _described(description))


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Say what has changed between two descriptions, a line for each change."""
    lines = []
    if before["ref"] != now["ref"]:
        lines.append(f"the step was {before['ref']}")
    if before["version"] != now["version"]:
        lines.append(f"its version was {before['version']}, and is {now['version']}")
    if before.get("order") != now.get("order"):
        lines.append("the manifest's rows or their order were others")
    for name in sorted(before["params"].keys() | now["params"].keys()):
        old, new = (side["params"].get(name, "its default") for side in (before, now))
        if old != new:
            lines.append(f"the parameter {name} was {old}, and is {new}")
    for name in sorted(before["sources"].keys() | now["sources"].keys()):
        if name not in now["sources"]:
            lines.append(f"it no longer imports {name}")
        elif name not in before["sources"]:
            lines.append(f"it imports {name} now")
        elif before["sources"][name] != now["sources"][name]:
            lines.append(f"the source of {name} has changed")
    return lines


def _described(value: Any) -> str:
    """Write a value as JSON, the same in every process; of what JSON has no form for, the type."""
    from pydantic_core import to_json

    return to_json(value, fallback=lambda odd: str(type(odd))).decode()


def sources_of(ref: str) -> dict[str, str]:
    """Return the digests of the sources behind a reference, by module; imports nothing."""
    return _sources(ref, None)


def _sources(ref: str, target: Any) -> dict[str, str]:
    """Return the digests of the sources that a step consists of, by module."""
    function = target.func if isinstance(target, partial) else target
    own = {ref.partition(":")[0]}
    # An object's class may be torch's, as that of a Subset: its module is not the step's.
    if inspect.isroutine(function) or inspect.isclass(function):
        own |= {getattr(inspect.getmodule(function), "__name__", "")} - {""}
    # Of our own package, steps' modules alone: their results are not those of the engine.
    tops = {name.partition(".")[0] for name in own}
    waiting, sources = sorted(own), {}
    while waiting:
        name = waiting.pop()
        path = _source_file(name)
        if name in sources or not path or not (name in own or _is_users(name, path, tops)):
            continue
        with open(path, "rb") as file:
            text = file.read()
        sources[name] = digest("source", text.decode("utf-8", "surrogateescape"))
        waiting += _imported(text, name, is_package=path.endswith("__init__.py"))
    return dict(sorted(sources.items()))


def _source_file(name: str) -> str | None:
    """Return the file of a module, without importing it; None if it has none."""
    if name.partition(".")[0] in sys.stdlib_module_names:
        return None
    path = getattr(sys.modules.get(name), "__file__", None)
    if path is None:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError, AttributeError):
            return None  # A name in a module, or one that is not installed here.
        path = spec.origin if spec else None
    is_source = path and path.endswith(tuple(SOURCE_SUFFIXES)) and os.path.isfile(path)
    return path if is_source else None


def _is_users(name: str, path: str, tops: set[str]) -> bool:
    top = name.partition(".")[0]
    if top == _OURS:
        return top in tops and name.startswith(_OUR_STEPS)
    if top in tops:
        return True
    place = os.path.realpath(path)
    return not (place.startswith(_INSTALLED) or _INSTALLED_FOLDERS & {*place.split(os.sep)})


def _imported(text: bytes, module: str, *, is_package: bool) -> Iterator[str]:
    """Yield the names of what a module's source imports, anywhere in it."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return  # It was imported: its text has been edited since.
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
            # What is imported from a package may be a module of it.
            yield from (f"{base}.{alias.name}" for alias in node.names if base)


def _with_parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        yield ".".join(parts[:end])
