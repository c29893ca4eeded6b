"""The user's step: found by its reference, looked at once, and ready to be given inputs."""

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

from batchmill.allowlist import check_origin, check_step
from batchmill.errors import StepError
from batchmill.step.fingerprint import describe_step, identity_of
from batchmill.step.params import check_params
from batchmill.step.tracked_file import take_contents

StepKind = Literal["function", "dataset", "items"]

# What batchmill itself gives to a function's or a Dataset's parameters of these names.
_GIVEN_TO_FUNCTION = ("out", "row")
_GIVEN_TO_DATASET = ("labels",)
_GIVEN_TO_BATCH = ("outs",)


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step and its checked parameters.

    `kind` tells how it is used: a "function" is called with each input's path; a "dataset" is a
    class that is made with the list of inputs and then indexed; "items" is an object with
    `__len__` and `__getitem__`, whose item i belongs to row i of the manifest. `given` are the
    names of those parameters that batchmill fills in. One that `is_batched` has `process_batch`,
    which is given collated batches of its items. `identity` is the digest of `description`:
    results of another identity are not this step's.
    """

    ref: str
    kind: StepKind
    target: Any
    params: Mapping[str, Any]
    given: frozenset[str]
    identity: str
    description: Mapping[str, Any]

    @property
    def is_batched(self) -> bool:
        """Whether its items are samples, for batches."""
        return self.kind != "function" and hasattr(self.target, "process_batch")


def load_step(ref: str, params: Mapping[str, Any] | None = None, *, search: str = "") -> Step:
    """Import the step that `ref` ("package.module:attribute") names, and check `params` against it.

    `search` is a folder that joins the import path, last. Raises StepError, which says what was
    found and what was expected; OptionError for one that may not be run here.
    """
    check_step(ref)
    target = _resolve(ref, search)
    check_origin(ref, target)
    params = dict(params or {})
    kind = _kind(ref, target)
    if kind == "items":
        if params:
            raise StepError(
                f"step {ref}: is a {type(target).__name__}, which takes no parameters; "
                f"got {', '.join(sorted(params))}. Drop them, or name a class or function."
            )
        return _step(ref, kind, target, {}, _given_to_batch(ref, target), {})
    signature = _signature(ref, target)
    takes = _takes_input(ref, signature)
    special = _GIVEN_TO_FUNCTION if kind == "function" else _GIVEN_TO_DATASET
    given = frozenset(name for name in special if name in signature.parameters and name != takes)
    checked = check_params(ref, target, signature, params, filled=given | {takes})
    if kind == "dataset":
        given |= _given_to_batch(ref, target)
    placed, contents = take_contents(ref, target, checked, search)
    return _step(ref, kind, target, placed, given, contents)


def reference_to(step: str | Callable[..., Any]) -> str:
    """Return the reference of a function or class; a reference is returned as it is.

    Raises StepError for one that another process could not import: a lambda, a function inside
    another, one typed into a REPL or notebook.
    """
    if isinstance(step, str):
        return step
    module = getattr(step, "__module__", None)
    name = getattr(step, "__qualname__", "")
    if module == "__main__":
        file = getattr(sys.modules["__main__"], "__file__", None)
        module = os.path.splitext(os.path.basename(file))[0] if file else None
    if not module or not name or "<" in name:
        raise StepError(
            f"step {step!r}: other processes cannot import it. Put it at the top level of a "
            "module, and name it as package.module:attribute."
        )
    return f"{module}:{name}"


def _step(
    ref: str,
    kind: StepKind,
    target: Any,
    params: Mapping[str, Any],
    given: frozenset[str],
    contents: Mapping[str, str],
) -> Step:
    # Of a path whose content counts, that is what the step is told by.
    description = describe_step(ref, target, {**params, **contents})
    return Step(
        ref=ref,
        kind=kind,
        target=target,
        params=params,
        given=given,
        identity=identity_of(description),
        description=description,
    )


def _resolve(ref: str, search: str) -> Any:
    module_name, colon, attribute = ref.partition(":")
    if not colon or not module_name or not attribute:
        raise StepError(
            f"step {ref!r}: expected package.module:attribute, as in batchmill.steps.words:split."
        )
    if module_name.endswith(".py") or "/" in module_name:
        hint = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise StepError(
            f"step {ref!r}: {module_name!r} is a path; expected a module, as in {hint}:{attribute}."
        )
    value: Any = _import_module(ref, module_name, search)
    for part in attribute.split("."):
        try:
            value = getattr(value, part)
        except AttributeError as error:
            names = [name for name in dir(value) if name.isidentifier() and name[0] != "_"]
            own = [n for n in names if getattr(getattr(value, n), "__module__", "") == module_name]
            raise StepError(
                f"step {ref}: {module_name} has no {part!r}. "
                f"It has: {', '.join(own or names) or 'nothing'}."
            ) from error
    return value


def _import_module(ref: str, module_name: str, search: str) -> ModuleType:
    """Import a module, with `search` last on the import path; it stays there for later imports."""
    if search and search not in sys.path:
        sys.path.append(search)
    # A file that was written a moment ago may not be in the finder's cache of its folder.
    importlib.invalidate_caches()
    token = _importing.set(module_name)
    try:
        return importlib.import_module(module_name)
    except StepError as error:
        # A built-in step's module says itself which library it misses, and how to get it.
        raise StepError(f"step {ref}: {error}") from error
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name == missing or module_name.startswith(f"{missing}."):
            where = f" or in {search}" if search else ""
            raise StepError(
                f"step {ref}: no module {missing!r} on the import path{where}. "
                "Check the spelling, install it, or go to its folder."
            ) from error
        raise StepError(
            f"step {ref}: {module_name} imports {missing!r}, which is not installed. "
            f"Install it: pip install {missing.partition('.')[0]}"
        ) from error
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        place = f" (line {frames[-1].lineno} of {frames[-1].filename})" if frames else ""
        raise StepError(
            f"step {ref}: importing {module_name} failed with {type(error).__name__}: {error}"
            f"{place}. Mend it until this works: python -c 'import {module_name}'"
        ) from error
    finally:
        _importing.reset(token)


# The module of a step that is being imported.
_importing: ContextVar[str] = ContextVar("importing", default="")


def refuse_nested_run() -> None:
    """Raise StepError if the module of a step starts a run while it is imported.

    Each process that runs the step imports it, and would start another run.
    """
    module = _importing.get()
    if module:
        raise StepError(
            f"importing {module} starts a run itself, and so would each worker. "
            "Put the call under: if __name__ == '__main__':"
        )


def _kind(ref: str, target: Any) -> StepKind:
    if _is_iterable_dataset(target):
        raise StepError(
            f"step {ref}: is an IterableDataset, which cannot be asked for the item of one input. "
            "Name a Dataset with __getitem__, or a function that is given an input's path."
        )
    if inspect.isclass(target):
        if hasattr(target, "__getitem__") and hasattr(target, "__len__"):
            return "dataset"
        raise StepError(
            f"step {ref}: the class {target.__name__} has no __getitem__ and __len__. "
            "A class must be a Dataset; else name a function."
        )
    if inspect.iscoroutinefunction(target) or inspect.isasyncgenfunction(target):
        raise StepError(f"step {ref}: is an async function. Name a plain one.")
    if callable(target) and not hasattr(target, "__getitem__"):
        return "function"
    if hasattr(target, "__getitem__") and hasattr(target, "__len__"):
        return "items"
    raise StepError(
        f"step {ref}: is a {type(target).__name__}; expected a function, a Dataset class, or an "
        "object with __len__ and __getitem__."
    )


def _is_iterable_dataset(target: Any) -> bool:
    # It inherits a __getitem__ that raises. By name: torch takes a second to import.
    classes = inspect.getmro(target if inspect.isclass(target) else type(target))
    return any(
        kind.__name__ == "IterableDataset" and kind.__module__.startswith("torch.")
        for kind in classes
    )


def _signature(ref: str, target: Any) -> inspect.Signature:
    try:
        return inspect.signature(target)
    except (TypeError, ValueError) as error:
        raise StepError(
            f"step {ref}: its parameters cannot be read ({error}). Wrap it in a function."
        ) from error


def _given_to_batch(ref: str, target: Any) -> frozenset[str]:
    """Return which parameters of its `process_batch`, if it has one, batchmill fills in."""
    process = getattr(target, "process_batch", None)
    if process is None:
        return frozenset()
    signature = _signature(f"{ref}.process_batch", process)
    names = list(signature.parameters)
    # Looked up in a class, a method has its `self` still.
    is_plain = inspect.isclass(target) and inspect.isfunction(
        inspect.getattr_static(target, "process_batch")
    )
    given = frozenset(name for name in _GIVEN_TO_BATCH if name in names)
    needed = [
        name
        for name, parameter in signature.parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and name not in given
    ]
    if len(needed) != 1 + is_plain:
        raise StepError(
            f"step {ref}: its process_batch takes ({', '.join(names)}); expected one collated "
            "batch, and `outs` if it writes files."
        )
    return given


def _takes_input(ref: str, signature: inspect.Signature) -> str:
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            return parameter.name
        if parameter.kind is parameter.VAR_POSITIONAL:
            return parameter.name
        break
    raise StepError(
        f"step {ref}: takes no positional parameter; its first one is given the input's path."
    )
