"""A step's parameters: read from the command line, checked against its signature."""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

from batchmill.errors import OptionError, StepError


def parse_params(pairs: Sequence[str], file: Path | None = None) -> dict[str, Any]:
    """Turn `key=value` texts into parameters; those of `file` (a JSON object) come first.

    A value is JSON where it parses as such, else text:

    >>> parse_params(["seconds=2.5", "name=speech", 'ids=["a"]'])
    {'seconds': 2.5, 'name': 'speech', 'ids': ['a']}
    """
    return (_read_file(file) if file else {}) | parse_pairs(pairs, "--param", "seconds=5")


def parse_pairs(pairs: Sequence[str], option: str, example: str) -> dict[str, Any]:
    """Turn the `key=value` texts of an option into a dict. Raises OptionError."""
    values = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise OptionError(f"{option} {pair}: expected key=value, as in {option} {example}.")
        values[key.strip()] = _json_or_text(text)
    return values


def arguments_for(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of `values` that a function has parameters for.

    >>> arguments_for(lambda *, retries, fail_fast=False: None, {"retries": 2, "root": "in"})
    {'retries': 2}
    """
    return {name: values[name] for name in inspect.signature(function).parameters if name in values}


def check_params(
    ref: str,
    target: Any,
    signature: inspect.Signature,
    params: Mapping[str, Any],
    filled: frozenset[str],
) -> dict[str, Any]:
    """Return all parameters of a step, converted to their annotated types, defaults included.

    `filled` are those that batchmill gives itself. Raises StepError with every fault at once.
    """
    import pydantic

    named = {
        name: parameter
        for name, parameter in signature.parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and name not in filled
    }
    any_name = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    hints = hints_of(target)
    faults = [
        f"parameter {name!r} is missing. Give it: --param {name}=..."
        + (" (a step's output folder is called 'out')" if "out" not in signature.parameters else "")
        for name, parameter in named.items()
        if parameter.default is parameter.empty and name not in params
    ]
    checked = {
        name: parameter.default
        for name, parameter in named.items()
        if parameter.default is not parameter.empty
    }
    faults += [
        f"parameter {name!r} is positional-only; only the first may be. Drop the '/' after it."
        for name, parameter in list(signature.parameters.items())[1:]
        if parameter.kind is parameter.POSITIONAL_ONLY
    ]
    for name, value in params.items():
        if name not in named:
            if any_name and name not in filled:
                checked[name] = value
            else:
                takes = ", ".join(named) or "none"
                faults.append(f"unknown parameter {name!r}. It takes: {takes}.")
            continue
        if name not in hints:
            checked[name] = value
            continue
        try:
            checked[name] = _convert(hints[name], value)
        except pydantic.ValidationError as error:
            reason = error.errors()[0]["msg"]
            faults.append(
                f"parameter {name!r} is {value!r} ({type(value).__name__}), "
                f"expected {_type_name(hints[name])}: {reason}."
            )
    if faults:
        lines = [f"step {ref}: {faults[0]}"] if len(faults) == 1 else [f"step {ref}:", *faults]
        raise StepError("\n  ".join(lines))
    return checked


def _convert(hint: Any, value: Any) -> Any:
    import pydantic

    # The command line's JSON makes a number of "5" where the step wants text.
    config = pydantic.ConfigDict(coerce_numbers_to_str=True, arbitrary_types_allowed=True)
    try:
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(hint, config=config)
    except pydantic.errors.PydanticUserError:
        # Models and dataclasses have settings of their own, and take no others.
        adapter = pydantic.TypeAdapter(hint)
    return adapter.validate_python(value)


def hints_of(target: Any) -> dict[str, Any]:
    """Return the annotations of a step's parameters, by name; empty if they cannot be read."""
    function = target.__init__ if inspect.isclass(target) else target
    if not inspect.isroutine(function):
        function = type(function).__call__
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError, SyntaxError):
        # An annotation may name what only a type checker imports; then nothing is checked here.
        return {}


def _type_name(hint: Any) -> str:
    hint = getattr(hint, "__origin__", hint) if hasattr(hint, "__metadata__") else hint
    name = getattr(hint, "__name__", None)
    return name if isinstance(hint, type) and name else str(hint).replace("typing.", "")


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _read_file(file: Path) -> dict[str, Any]:
    text = _text_of(file, "--params")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"--params {file}: is not JSON ({error}). Mend it.") from error
    return _object(value, f"--params {file}")


def read_object(text: str, option: str) -> dict[str, Any]:
    """Read an option that is a JSON object, or a JSON or YAML file. Raises OptionError."""
    import yaml

    inline = text.lstrip().startswith("{")
    content = text if inline else _text_of(Path(text), option)
    try:
        value = yaml.safe_load(content)  # Of which JSON is a part.
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise OptionError(f"{option} {text}: is neither JSON nor YAML ({reason}).") from error
    return _object(value, f"{option} {text}")


def _text_of(file: Path, option: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise OptionError(f"{option} {file}: {error.strerror}. Check the path.") from error
    except ValueError as error:
        raise OptionError(f"{option} {file}: is not UTF-8 ({error}). Mend it.") from error


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise OptionError(f'{what}: holds a {type(value).__name__}; expected {{"key": value}}.')
    return value
