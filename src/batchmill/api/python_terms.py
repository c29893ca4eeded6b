"""Errors of the Python calls, in the terms of Python instead of the command line."""

import re
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Any, ParamSpec, TypeVar, get_type_hints

from batchmill.api.keywords import JobKeywords
from batchmill.errors import BatchmillError, OptionError

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
    parameters = signature(call).parameters
    required = {name for name, one in parameters.items() if one.default is Parameter.empty}

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
