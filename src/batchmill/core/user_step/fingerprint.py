"""Identify a version of a step by its reference, its code, its version and its parameters.

Results of a step with another identity are out of date. The code is what the step reaches in the
modules of the user: see `batchmill.core.user_step.code.reachable`. It does not include the
standard library and installed packages, except the package that contains the step.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from batchmill.core.digests import digest
from batchmill.core.user_step.code.module import Value
from batchmill.core.user_step.code.reachable import Definition, described, reachable_code
from batchmill.core.user_step.import_reference import is_reference
from batchmill.core.user_step.libraries import library_of
from batchmill.core.user_step.value.value_digests import value_code
from batchmill.errors import StepError


def describe_step(
    ref: str, target: Any, params: Mapping[str, Any], *, by_value: bool = False
) -> dict[str, Any]:
    """Describe a step by plain values. Two steps with the same description are the same step.

    Args:
        ref: The step's reference.
        target: The step.
        params: Its checked parameters.
        by_value: True if other processes cannot import the step.

    Returns:
        `ref`, `version` (the step's attribute, if any), `params`, and `code`: for each definition
        that the step reaches, its digest, the path that leads to it, and the value of a constant.
        `libraries`: the modules of libraries that the code names, which identify no step. If the
        step is not importable, also `imports`: the values of modules that it uses.

    Raises:
        StepError: The version has values other than numbers, text, lists, dicts and sets.
    """
    description = {
        "ref": ref,
        "version": _version_of(ref, target),
        "params": {name: described_value(value) for name, value in sorted(params.items())},
    }
    if not by_value:
        reached = reachable_code(roots_of(ref, target, params))
        return {**description, **_described_code(reached.definitions, reached.others)}
    local = value_code(ref, target)
    reached = reachable_code(local.imports, local.imports)
    return {
        **description,
        **_described_code(local.definitions | reached.definitions, local.others | reached.others),
        "imports": [
            {"module": value.module, "attributes": [*value.attributes], "path": [*path]}
            for value, path in local.imports.items()
        ],
    }


def _described_code(definitions: Mapping[str, Definition], others: Iterable[str]) -> dict[str, Any]:
    libraries = {name for module in others if (name := library_of(module))}
    return {"code": described(definitions), "libraries": sorted(libraries)}


def roots_of(ref: str, target: Any, params: Mapping[str, Any]) -> list[Value]:
    """Return the values where the code of a step begins.

    Args:
        ref: The step's reference.
        target: The step.
        params: Its checked parameters. Those in the step's attribute `references` may name code.

    Returns:
        Attributes of modules.
    """
    names = [str(params.get(name)) for name in getattr(target, "references", ())]
    roots = [_value_of(text) for text in (ref, *filter(is_reference, names))]
    function = target.func if isinstance(target, partial) else target
    # An object's class may belong to torch, such as Subset. Its module is not the step's.
    if inspect.isroutine(function) or inspect.isclass(function):
        module = getattr(inspect.getmodule(function), "__name__", "")
        name = getattr(function, "__qualname__", "")
        if module and name and not name.startswith("<"):
            roots.append(Value(module, tuple(name.partition(".<")[0].split("."))))
    return list(dict.fromkeys(roots))


def imported_values(description: Mapping[str, Any]) -> dict[Value, list[str]]:
    """Return the values of modules that a step uses, if the step itself is not importable."""
    entries = description["imports"]
    return {Value(entry["module"], tuple(entry["attributes"])): entry["path"] for entry in entries}


def code_digest(ref: str) -> str:
    """Return the digest of the code behind a reference. Imports nothing."""
    return _digest_of_code(described(reachable_code([_value_of(ref)]).definitions))


def _value_of(ref: str) -> Value:
    module, _, attribute = ref.partition(":")
    return Value(module, tuple(attribute.split(".")) if attribute else ())


def _digest_of_code(code: Mapping[str, Mapping[str, str]]) -> str:
    # The path and the shown value follow from the code, and are for the user only.
    return digest(
        "code", *(part for key, entry in sorted(code.items()) for part in (key, entry["digest"]))
    )


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
    code = _digest_of_code(description["code"])
    identifying = {name: value for name, value in description.items() if name != "libraries"}
    return digest("step", described_value({**identifying, "code": code}))


def has_same_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether two descriptions differ at most in the code of the step."""
    return all(before.get(part) == now.get(part) for part in ("ref", "version", "params", "order"))


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
    # An import and the imported definition may have the same path.
    return [*lines, *dict.fromkeys(_code_changes(before.get("code"), now["code"]))]


Code = Mapping[str, Mapping[str, str]]


def _code_changes(before: Code | None, now: Code) -> Iterator[str]:
    if before is None:
        yield "this version of batchmill identifies the code of a step in another way"
        return
    both = before.keys() & now.keys()
    changed = sorted(key for key in both if before[key]["digest"] != now[key]["digest"])
    for key in changed:
        path, old, new = now[key]["path"], before[key].get("value"), now[key].get("value")
        yield f"{path}: {old} -> {new}" if old and new and old != new else f"{path} changed"
    if not changed:
        # Otherwise a changed definition is the reason why another one is used or not.
        for key in sorted(before.keys() - both):
            yield f"{before[key]['path']} was removed"
        for key in sorted(now.keys() - both):
            yield f"{now[key]['path']} is new"


def described_value(value: Any) -> str:
    """Return a value as JSON, the same in every process. Without a JSON form, its type is used."""
    return _json_of(value, fallback=lambda odd: str(type(odd)))


def _json_of(value: Any, fallback: Callable[[Any], Any] | None = None) -> str:
    """Return a value as JSON, the same in every process. Raises ValueError without a fallback."""
    from pydantic_core import to_json

    return to_json(with_sorted_sets(value), fallback=fallback).decode()


def with_sorted_sets(value: Any) -> Any:
    """Return a value whose sets are sorted lists. A set of texts has no fixed order."""
    if isinstance(value, set | frozenset):
        return sorted((with_sorted_sets(item) for item in value), key=described_value)
    if isinstance(value, dict):
        return {key: with_sorted_sets(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [with_sorted_sets(item) for item in value]
    return value
