"""Load a step that is given as a function, class or object, not as a reference."""

import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from batchmill.security.allowlist import check_step
from batchmill.step.load import Step, check_target, load_step, reference_to
from batchmill.step.value.shipping import pickle_step


def name_of(step: Any) -> str:
    """Return the reference of a step, or a name that is no reference if it cannot be imported.

    >>> name_of(functools.partial(name_of))
    'batchmill.step.value.load:name_of (partial)'
    """
    reference = reference_to(step)
    if reference is not None:
        return reference
    if isinstance(step, functools.partial):
        return f"{_name_in_module(step.func)} (partial)"
    if inspect.ismethod(step):
        return f"{_name_in_module(step.__func__)} (method)"
    if inspect.isfunction(step) or inspect.isclass(step):
        return _name_in_module(step)
    return f"{_name_in_module(type(step))} (object)"


def load_given_step(
    step: Any,
    params: Mapping[str, Any] | None = None,
    *,
    search: str,
    file_columns: Sequence[str] = (),
) -> Step:
    """Load a step from a reference, or check a function, class or object.

    Args:
        step: The reference, function, class or object.
        params: The step's parameters.
        search: A folder that is appended to the import path.
        file_columns: The names of the manifest's columns with companions of the inputs.

    Returns:
        The step. If other processes cannot import it, it is pickled.

    Raises:
        StepError: It cannot be used as a step, or not be sent to other processes.
        OptionError: The step may not be run here.
    """
    reference = reference_to(step)
    if reference is not None:
        return load_step(reference, params, search=search, file_columns=file_columns)
    name = name_of(step)
    check_step(name)
    loaded = check_target(
        name, step, dict(params or {}), search, file_columns=file_columns, by_value=True
    )
    return replace(loaded, pickled=pickle_step(loaded))


def _name_in_module(target: Any) -> str:
    module = getattr(target, "__module__", None) or "__main__"
    return f"{module}:{getattr(target, '__qualname__', type(target).__name__)}"
