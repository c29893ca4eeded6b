"""Read a step's parameters from the command line, and check them against its signature."""

import inspect
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from batchmill.core.user_step.import_reference import import_step
from batchmill.errors import OptionError, StepError

if TYPE_CHECKING:
    import pydantic


def parse_params(pairs: Sequence[str], file: Path | None = None, step: str = "") -> dict[str, Any]:
    """Read parameters from `key=value` texts and a file.

    Args:
        pairs: The texts. A value is JSON if it parses as JSON, else text. A number stays text if
            only the text fits the step's annotation, such as 1.10 for `version: str`.
        file: A JSON object with further parameters. The texts override it.
        step: The reference of the step.

    Returns:
        The parameters.

    Raises:
        OptionError: A text or the file cannot be read.
        StepError: The step cannot be imported.

    >>> parse_params(["seconds=2.5", "name=speech", 'ids=["a"]'])
    {'seconds': 2.5, 'name': 'speech', 'ids': ['a']}
    """
    read = _read_file(file.expanduser()) if file else {}
    texts = _split_pairs(pairs, "--param", "seconds=5")
    params = read | {name: _json_or_text(text) for name, text in texts.items()}
    rewritten = [
        name
        for name, text in texts.items()
        if isinstance(params[name], int | float) and str(params[name]) != text
    ]
    hints = hints_of(import_step(step, os.getcwd())) if step and rewritten else {}
    for name in hints.keys() & {*rewritten}:
        hint, text = hints[name], texts[name]
        if not _fits(hint, params[name], params, strict=True) and _fits(hint, text, params):
            params[name] = text
    return params


def parse_pairs(pairs: Sequence[str], option: str, example: str) -> dict[str, Any]:
    """Read the `key=value` texts of an option.

    Args:
        pairs: The texts.
        option: The name of the option, for messages.
        example: An example, for messages.

    Returns:
        The values by key.

    Raises:
        OptionError: A text has no key or no equals sign.
    """
    texts = _split_pairs(pairs, option, example)
    return {name: _json_or_text(text) for name, text in texts.items()}


def _split_pairs(pairs: Sequence[str], option: str, example: str) -> dict[str, str]:
    texts = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise OptionError(f"{option} {pair}: expected key=value, such as {option} {example}.")
        texts[key.strip()] = text
    return texts


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def check_params(
    ref: str,
    target: Any,
    signature: inspect.Signature,
    params: Mapping[str, Any],
    filled: frozenset[str],
) -> dict[str, Any]:
    """Check the parameters of a step, and convert them to their annotated types.

    Args:
        ref: The step's reference, for messages.
        target: The step.
        signature: Its signature.
        params: The parameters that the user gave.
        filled: The parameters that batchmill fills in.

    Returns:
        All parameters, including defaults.

    Raises:
        StepError: Parameters do not fit. It lists all faults.
    """
    import pydantic

    # The parameters that a user can give by name.
    named = {
        name: parameter
        for name, parameter in signature.parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and name not in filled
    }
    faults = _missing(named, signature, params) + _positional_only(signature)
    takes_any_name = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    hints = hints_of(target)
    checked = {
        name: parameter.default
        for name, parameter in named.items()
        if parameter.default is not parameter.empty
    }
    for name, value in params.items():
        if name not in named and (name in filled or not takes_any_name):
            faults.append(f"unknown parameter {name!r}. It takes: {', '.join(named) or 'none'}.")
            continue
        has_type = name in named and name in hints
        try:
            checked[name] = _convert(hints[name], value, params) if has_type else value
        except pydantic.ValidationError as error:
            # The text 1 of `mode: Literal["1", "2"]` or of a path is a number in JSON.
            if type(value) in (int, float) and _fits(hints[name], str(value), params):
                checked[name] = _convert(hints[name], str(value), params)
            else:
                faults.append(_type_fault(name, value, hints[name], error))
    if faults:
        lines = [f"step {ref}: {faults[0]}"] if len(faults) == 1 else [f"step {ref}:", *faults]
        raise StepError("\n  ".join(lines))
    return checked


def _missing(
    named: Mapping[str, inspect.Parameter], signature: inspect.Signature, params: Mapping[str, Any]
) -> list[str]:
    # A step without `out` may use another name for its output folder.
    hint = "" if "out" in signature.parameters else " (a step's output folder is called 'out')"
    if next(iter(signature.parameters), "") == "out":
        hint = " (the first parameter is the input's path: put it before 'out')"
    return [
        f"parameter {name!r} is missing. Add --param {name}=...{hint}"
        for name, parameter in named.items()
        if parameter.default is parameter.empty and name not in params
    ]


def _positional_only(signature: inspect.Signature) -> list[str]:
    return [
        f"parameter {name!r} is positional-only, which only the first may be. Remove the '/'."
        for name, parameter in list(signature.parameters.items())[1:]
        if parameter.kind is parameter.POSITIONAL_ONLY
    ]


def _type_fault(name: str, value: Any, hint: Any, error: "pydantic.ValidationError") -> str:
    reason = error.errors()[0]["msg"]
    actual, expected = type(value).__name__, _type_name(hint)
    if actual == expected:
        return f"parameter {name!r} is {value!r}: {reason}."
    return f"parameter {name!r} is {value!r} ({actual}), expected {expected}: {reason}."


def _fits(hint: Any, value: Any, params: Mapping[str, Any], *, strict: bool | None = None) -> bool:
    import pydantic

    try:
        _convert(hint, value, params, strict=strict)
    except pydantic.ValidationError:
        return False
    return True


def _convert(
    hint: Any, value: Any, params: Mapping[str, Any], *, strict: bool | None = None
) -> Any:
    import pydantic

    # The value 5 on the command line is a JSON number, even if the step expects text.
    config = pydantic.ConfigDict(coerce_numbers_to_str=True, arbitrary_types_allowed=True)
    try:
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(hint, config=config)
    except pydantic.errors.PydanticUserError:
        # Pydantic models and dataclasses have their own settings.
        adapter = pydantic.TypeAdapter(hint)
    # A validator of the annotation sees the other parameters as its context.
    return adapter.validate_python(value, strict=strict, context=params)


def hints_of(target: Any) -> dict[str, Any]:
    """Return the annotations of a step by parameter, and of its result as `return`.

    Empty if they cannot be read.
    """
    function = target.__init__ if inspect.isclass(target) else target
    try:
        if not inspect.isroutine(function):
            function = type(function).__call__
        return get_type_hints(function, include_extras=True)
    except Exception:  # noqa: BLE001  # An annotation is any expression. Then no type is checked.
        return {}


def _type_name(hint: Any) -> str:
    hint = getattr(hint, "__origin__", hint) if hasattr(hint, "__metadata__") else hint
    name = getattr(hint, "__name__", None)
    return name if isinstance(hint, type) and name else str(hint).replace("typing.", "")


def _read_file(file: Path) -> dict[str, Any]:
    text = _text_of(file, "--params")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"--params {file}: is not JSON ({error}). Fix the JSON.") from error
    return _object(value, f"--params {file}")


def read_object(text: str, option: str) -> dict[str, Any]:
    """Read an option that is a JSON object, or the path of a JSON or YAML file.

    Args:
        text: The value of the option.
        option: The name of the option, for messages.

    Returns:
        The object.

    Raises:
        OptionError: The file cannot be read, or does not hold an object.
    """
    import yaml

    inline = text.lstrip().startswith("{")
    content = text if inline else _text_of(Path(text), option)
    try:
        value = yaml.safe_load(content)  # YAML includes JSON.
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        what = "text" if inline else "file"
        raise OptionError(
            f"{option} {text}: is not valid JSON or YAML{where}. Fix the {what}."
        ) from error
    return _object(value, f"{option} {text}")


def _text_of(file: Path, option: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise OptionError(f"{option} {file}: {error.strerror}. Check the path.") from error
    except ValueError as error:
        raise OptionError(f"{option} {file}: is not UTF-8 ({error}). Save it as UTF-8.") from error


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise OptionError(f'{what}: holds a {type(value).__name__}; expected {{"key": value}}.')
    return value
