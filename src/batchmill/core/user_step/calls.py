"""The function that is called when a step is called, and whether it is async."""

import inspect
from collections.abc import Callable
from typing import Any


def is_async(target: Any) -> bool:
    """Return whether a step is an async function, generator, method, object or class."""
    return any(
        inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called)
        for called in (target, called_on(target))
    )


def called_on(target: Any) -> Callable[..., Any] | None:
    """Return the method `__call__` of a class, or of an object's class. None without one."""
    kind = target if inspect.isclass(target) else type(target)
    return next((vars(base)["__call__"] for base in kind.__mro__ if "__call__" in vars(base)), None)


def call_signature(target: type) -> inspect.Signature:
    """Return the signature of a call of a class's objects."""
    called: Any = called_on(target)
    signature = inspect.signature(called)
    return signature.replace(parameters=list(signature.parameters.values())[1:])
