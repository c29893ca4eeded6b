"""Load the user's step from its reference, and check it."""

import inspect
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal

from batchmill.core.user_step.calls import call_signature, called_on, is_async
from batchmill.core.user_step.declared_rows import DeclaredRows, declared_rows
from batchmill.core.user_step.fingerprint import describe_step, identity_of
from batchmill.core.user_step.import_reference import import_step
from batchmill.core.user_step.params import check_params, hints_of
from batchmill.core.user_step.tracked_file import ContentCounts, TrackedFile, track_files
from batchmill.core.user_step.value.value_digests import is_importable
from batchmill.errors import OptionError, StepError

StepKind = Literal["function", "dataset", "items"]

# Parameters with these names get their values from batchmill.
_GIVEN = {"function": ("out", "row"), "dataset": ("labels",)}


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step and its checked parameters.

    Attributes:
        ref: Its reference, package.module:attribute.
        kind: How it is used. A "function" is called with each input's path. A "dataset" is a class
            that is created with the list of inputs and then indexed. "items" is an object with
            `__len__` and `__getitem__`, whose item i belongs to row i of the manifest.
        target: The function, class or object.
        params: Its parameters, with defaults.
        given: The names of the parameters that batchmill fills in.
        identity: The digest of `description`. Results of another identity are out of date.
        description: The values that identify the step.
        tracked: The files whose content is part of the identity, by parameter or name.
        pickled: The step as it is sent to other processes, if they cannot import it.
        declared: The type of its rows, if it declares one.
        opens_input: True if it receives each input as an open file and not as a path.
        is_async: True if a call must be awaited. Then the target of a "function" may be a class,
            which each worker creates with the parameters.
    """

    ref: str
    kind: StepKind
    target: Any
    params: Mapping[str, Any]
    given: frozenset[str]
    identity: str
    description: Mapping[str, Any]
    tracked: Mapping[str, TrackedFile] = field(default_factory=dict)
    pickled: bytes = b""
    declared: DeclaredRows | None = None
    opens_input: bool = False
    is_async: bool = False

    @property
    def is_batched(self) -> bool:
        """True if `process_batch` is called with collated batches of its items."""
        return self.kind != "function" and hasattr(self.target, "process_batch")

    @property
    def takes_any_gpu(self) -> bool:
        """True for a batch step with the parameter `device` if its value is `auto` or `cuda`."""
        return self.is_batched and self.params.get("device") in ("auto", "cuda")

    @property
    def takes_rows(self) -> bool:
        """True if it receives the other columns of the manifest."""
        return bool({"row", "labels"} & self.given)

    def check_input_kind(self, *, is_folder: bool) -> None:
        """Raise OptionError if the step cannot receive inputs of this kind."""
        if is_folder and self.opens_input:
            raise OptionError(
                f"--input-kind folder: the step {self.ref} takes an open file (BinaryIO), but a "
                "folder cannot be opened. Annotate its first parameter as Path."
            )


def load_step(
    ref: str,
    params: Mapping[str, Any] | None = None,
    *,
    search: str = "",
    file_columns: Sequence[str] = (),
) -> Step:
    """Import a step, and check its parameters.

    Args:
        ref: package.module:attribute.
        params: The step's parameters.
        search: A folder that is appended to the import path.
        file_columns: The names of the manifest's columns with companions of the inputs.

    Returns:
        The step, ready to run.

    Raises:
        StepError: The reference does not name a step, or the parameters do not fit it.
        OptionError: The step may not be run here.
    """
    target = import_step(ref, search)
    return check_target(ref, target, params or {}, search, file_columns=file_columns)


def check_target(
    ref: str,
    target: Any,
    params: Mapping[str, Any],
    search: str,
    *,
    file_columns: Sequence[str] = (),
    by_value: bool = False,
) -> Step:
    """Check a step that is loaded, and its parameters.

    Args:
        ref: Its reference, or its name if other processes cannot import it.
        target: The function, class or object.
        params: The step's parameters.
        search: The folder that relative paths are relative to.
        file_columns: As for `load_step`.
        by_value: True if other processes cannot import it.

    Returns:
        The step.

    Raises:
        StepError: It is no step, or the parameters do not fit it.
        OptionError: A file may not be read here.
    """
    kind = _kind(ref, target)
    is_opened = False
    if kind == "items":
        if params:
            raise StepError(
                f"step {ref}: is a {type(target).__name__}, which takes no parameters "
                f"(got {', '.join(sorted(params))}). Drop them, or name a class or function."
            )
        given, checked, tracked = frozenset[str](), {}, _files_of(ref, target)
    else:
        signature = call = _signature(ref, target)
        if kind == "function" and inspect.isclass(target):
            call = call_signature(target)
        takes = _takes_input(ref, call)
        special = (*_GIVEN[kind], *file_columns)
        given = frozenset(name for name in special if name in call.parameters and name != takes)
        filled = given | {takes}
        if call is not signature:
            _check_call(ref, call, filled)
            filled = frozenset()
        checked = check_params(ref, target, signature, params, filled=filled)
        checked, tracked = track_files(ref, target, checked, search)
        called = target if call is signature else called_on(target)
        is_opened = kind == "function" and _is_open_file(called, call.parameters[takes])
    if kind != "function":
        given |= _given_to_batch(ref, target)
    # For a path marked with ContentCounts, the content identifies the step, not the path.
    contents = {name: tracked[name].content for name in tracked.keys() & checked.keys()}
    description = describe_step(ref, target, {**checked, **contents}, by_value=by_value)
    return Step(
        ref=ref,
        kind=kind,
        target=target,
        params=checked,
        given=given,
        identity=identity_of(description),
        description=description,
        tracked=tracked,
        declared=declared_rows(target, kind),
        opens_input=is_opened,
        is_async=kind == "function" and is_async(target),
    )


def reference_to(step: Any) -> str | None:
    """Return the reference of a function or class.

    Args:
        step: A function, a class, or a reference, which is returned unchanged.

    Returns:
        package.module:attribute. None if another process cannot import it: a lambda, a function
        inside another, a function of a notebook, a method of an object, an object. Also None for a
        wrapper that only has the name of an importable function.
    """
    if isinstance(step, str):
        return step
    module = getattr(step, "__module__", None)
    name = getattr(step, "__qualname__", "")
    if module == "__main__":
        # Other processes import a script under its own name.
        main = sys.modules["__main__"]
        file = os.path.basename(getattr(main, "__file__", None) or "")
        is_script = file.endswith(".py") and file != "__main__.py"
        is_script = is_script and getattr(main, name, None) is step
        return f"{file.removesuffix('.py')}:{name}" if is_script else None
    return f"{module}:{name}" if is_importable(step) else None


def _files_of(ref: str, target: Any) -> dict[str, TrackedFile]:
    """Return the files that an object's version depends on, by its attribute `version_files`."""
    try:
        return {
            name: TrackedFile.read(path, ContentCounts())
            for name, path in getattr(target, "version_files", {}).items()
        }
    except OSError as error:
        raise StepError(f"step {ref}: {error.filename}: {error.strerror}.") from error


def _kind(ref: str, target: Any) -> StepKind:
    if _is_iterable_dataset(target):
        raise StepError(
            f"step {ref}: is an IterableDataset, which cannot return one item per input. "
            "Name a Dataset with __getitem__, or a function that takes an input's path."
        )
    if inspect.isclass(target):
        if hasattr(target, "__getitem__") and hasattr(target, "__len__"):
            return "dataset"
        if is_async(target):
            return "function"
        raise StepError(
            f"step {ref}: the class {target.__name__} has no __getitem__ and __len__, and no async "
            "__call__. Add them, or name a function."
        )
    if callable(target) and not hasattr(target, "__getitem__"):
        return "function"
    if hasattr(target, "__getitem__") and hasattr(target, "__len__"):
        return "items"
    raise StepError(
        f"step {ref}: is a {type(target).__name__}; expected a function, a Dataset class, or an "
        "object with __len__ and __getitem__."
    )


def _is_iterable_dataset(target: Any) -> bool:
    # An IterableDataset inherits a __getitem__ that raises. Its class is compared by name, because
    # importing torch takes a second.
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


def _check_call(ref: str, call: inspect.Signature, filled: frozenset[str]) -> None:
    """Raise StepError if a call of the objects of a class needs more than batchmill gives."""
    for name in _needed(call, filled):
        raise StepError(
            f"step {ref}: its __call__ takes {name!r}, which batchmill does not give. Move it "
            "to __init__, which takes the parameters of the step."
        )


def _needed(signature: inspect.Signature, filled: frozenset[str]) -> list[str]:
    """Return the parameters that need a value, without those that batchmill fills in."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        name
        for name, parameter in signature.parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in variadic
        and name not in filled
    ]


def _given_to_batch(ref: str, target: Any) -> frozenset[str]:
    """Return the parameters of `process_batch`, if any, that batchmill fills in.

    Raises StepError if it cannot be called with a batch, or if `begin_batch` takes others.
    """
    if not hasattr(target, "process_batch"):
        return frozenset()
    given = _given_to(ref, target, "process_batch")
    if hasattr(target, "begin_batch") and _given_to(ref, target, "begin_batch") != given:
        raise StepError(
            f"step {ref}: its begin_batch and process_batch differ in the parameter `outs`. Give "
            "it to both, or to neither."
        )
    return given


def _given_to(ref: str, target: Any, method: str) -> frozenset[str]:
    signature = _signature(f"{ref}.{method}", getattr(target, method))
    names = list(signature.parameters)
    # A method that is looked up in a class still takes `self`.
    is_plain = inspect.isclass(target) and inspect.isfunction(
        inspect.getattr_static(target, method)
    )
    given = frozenset({"outs"} & {*names})
    if len(_needed(signature, given)) != 1 + is_plain:
        raise StepError(
            f"step {ref}: its {method} takes ({', '.join(names)}); expected one collated "
            "batch, and `outs` if it writes files."
        )
    return given


def _is_open_file(target: Any, parameter: inspect.Parameter) -> bool:
    """Return whether the annotation of a parameter is BinaryIO."""
    # Without `hints_of`, the annotation may be text: only type checkers can read some modules.
    hint = hints_of(target).get(parameter.name, parameter.annotation)
    return hint is BinaryIO or hint in ("BinaryIO", "typing.BinaryIO")


def _takes_input(ref: str, signature: inspect.Signature) -> str:
    first = next(iter(signature.parameters.values()), None)
    if first and first.kind not in (first.KEYWORD_ONLY, first.VAR_KEYWORD):
        return first.name
    raise StepError(f"step {ref}: takes no positional parameter. Add one for the input's path.")
