"""The options of the Python calls, for type checkers and for `help()`, and their errors.

The option models define the names and defaults. A type checker needs them in the source, so these
classes repeat the names, with the types that a Python caller may pass. A test compares them with
the models. Errors are in the terms of Python instead of the command line.
"""

import inspect
import os
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar, get_type_hints

from batchmill.core.options.job_options import JobSettings, ModelOptions
from batchmill.errors import BatchmillError, OptionError

_Call = TypeVar("_Call", bound=Callable[..., Any])


class _CommonKeywords(TypedDict, total=False):
    """Options of `run`, `plan` and `infer`."""

    input_column: str
    input_kind: Literal["file", "folder"]
    file_columns: Sequence[str] | str
    root: str | os.PathLike[str]
    pattern: str
    min_age: float
    allow_missing: bool
    partition: str | Mapping[str, float]
    group_by: str
    stratify: str
    seed: int
    batch_size: int | None
    num_workers: int | None
    concurrency: int | None
    rate: str
    pack: str
    log_steps: Literal["off", "debug", "info", "warning", "error"]
    retries: int
    retry_timeouts: bool
    timeout: float | None
    memory_limit: str | int
    max_failures: int | str
    known_failures: Literal["failed", "ok"]
    fail_fast: bool
    stop_after_same: int
    expect: Sequence[str] | str
    force: bool
    replace_step: bool
    accept_change: bool
    verify_change: int
    libraries: Literal["note", "count"]
    sample: int
    prune: bool
    prune_failed: bool
    keep_versions: int
    wait: bool


class JobKeywords(_CommonKeywords, total=False):
    """Options of `run` and `plan`."""

    confine: bool
    allow_write: Sequence[str] | str | os.PathLike[str]
    allow_network: bool


class InferKeywords(_CommonKeywords, total=False):
    """Options of `infer`. A model cannot be confined."""

    weights: str | os.PathLike[str]
    load: str
    collate: str
    device: str
    classes: Sequence[str] | str
    predictions: Literal["rows", "files"]


def with_options(keywords: type) -> Callable[[_Call], _Call]:
    """Return a decorator that adds the options in `keywords` to a signature and a docstring."""
    types = get_type_hints(keywords)
    groups = [ModelOptions(), *JobSettings().parameters().values()]
    options = {name: field for group in groups for name, field in type(group).model_fields.items()}
    fields = {name: field for name, field in options.items() if name in types}

    def describe(call: _Call) -> _Call:
        signature = inspect.signature(call)
        named = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        kind = inspect.Parameter.KEYWORD_ONLY
        flat = [
            inspect.Parameter(name, kind, default=field.default, annotation=types[name])
            for name, field in fields.items()
        ]
        call.__signature__ = signature.replace(parameters=[*named, *flat])  # type: ignore[attr-defined]
        wrapper = textwrap.TextWrapper(width=96, initial_indent=" " * 4, subsequent_indent=" " * 8)
        lines = [wrapper.fill(f"{name}: {field.description}") for name, field in fields.items()]
        call.__doc__ = f"{inspect.getdoc(call)}\n\nOptions:\n" + "\n".join(lines) + "\n"
        return call

    return describe


_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_FLAGS = {name for name, kind in get_type_hints(JobKeywords).items() if kind is bool}
_FLAGS |= {"hash", "repair"}
_OTHER_NAMES = {"ray": "cluster"}
# A command keeps its options.
_COMMAND = re.compile(r"\bbatchmill [a-z]")
_PARAM = re.compile(r"--param (\w+)=(\.\.\.|[^\s.,]+)")
_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z-]*)")


def python_call(call: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Decorate a call: its errors name keywords, and None for a required argument is one."""
    parameters = inspect.signature(call).parameters
    required = {name for name, p in parameters.items() if p.default is inspect.Parameter.empty}

    @wraps(call)
    def checked(*args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        for name, value in [*zip(parameters, args, strict=False), *kwargs.items()]:
            if value is None and name in required:
                usage = f"help(batchmill.{call.__name__})"
                raise OptionError(f"{name}: got None. Give a value, as {usage} describes.")
        try:
            return call(*args, **kwargs)
        except BatchmillError as error:
            # Subclasses keep parts of their text in attributes.
            error.args = _reworded(error.args)
            vars(error).update({name: _reworded(value) for name, value in vars(error).items()})
            raise

    return checked


def _reworded(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_reworded, value))
    return "\n".join(map(in_python, value.split("\n"))) if isinstance(value, str) else value


def in_python(line: str) -> str:
    """Return a line of a message with keywords instead of options.

    >>> in_python("2 of 2 inputs do not exist. To run the job anyway: --allow-missing")
    '2 of 2 inputs do not exist. To run the job anyway: allow_missing=True'
    >>> in_python("parameter 'seconds' is missing. Add --param seconds=...")
    "parameter 'seconds' is missing. Add params={'seconds': ...}"
    >>> in_python("--max-failures x: expected a number. List: batchmill failures d --group 1")
    'max_failures x: expected a number. List: batchmill failures d --group 1'
    """
    command = _COMMAND.search(line)
    end = command.start() if command else len(line)
    text = _PARAM.sub(r"params={'\1': \2}", line[:end])
    return _OPTION.sub(_keyword, text) + line[end:]


def _keyword(option: re.Match[str]) -> str:
    name = option[1].replace("-", "_")
    return f"{name}=True" if name in _FLAGS else _OTHER_NAMES.get(name, name)
