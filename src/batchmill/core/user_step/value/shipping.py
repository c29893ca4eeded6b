"""Load a step that is given as a function, and send it to the processes that run shards.

A pickle can run any code when it is read. So a process reads one only if it got the pickle's digest
from the process that made it, and never because a dataset contains one.
"""

import functools
import hashlib
import inspect
import io
import linecache
import marshal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import CodeType
from typing import Any

import cloudpickle

from batchmill.core.security.allowlist import check_step
from batchmill.core.user_step.code.reachable import described, reachable_code
from batchmill.core.user_step.fingerprint import described_value, imported_values
from batchmill.core.user_step.import_reference import is_reference
from batchmill.core.user_step.load import Step, check_target, load_step, reference_to
from batchmill.core.user_step.tracked_file import track_file
from batchmill.errors import StepError

# A larger step would take longer to send than its data takes to load from a file.
_MOST_BYTES = 64 * 2**20


class _TooLargeError(Exception):
    """The pickle has more bytes than allowed."""


class _Bounded(io.BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > _MOST_BYTES:
            raise _TooLargeError
        return super().write(data)


class _SourcePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A pickler that adds the source of each function, so that a traceback shows its lines.

    cloudpickle drops the name of the file, and another process does not have the cells of a
    notebook.
    """

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, CodeType):
            return super().reducer_override(obj)
        try:
            lines, first = inspect.getsourcelines(obj)
        except OSError:
            lines, first = [], 1
        return _code_with_source, (marshal.dumps(obj), lines, first)


def _code_with_source(code: bytes, lines: list[str], first: int) -> CodeType:
    loaded: CodeType = marshal.loads(code)  # noqa: S302  # The digest of the pickle is right.
    name = loaded.co_filename
    known = [*linecache.getlines(name)]  # Another function of the same cell.
    known += ["\n"] * (first - 1 - len(known))
    known[first - 1 : first - 1 + len(lines)] = lines
    linecache.cache[name] = (0, None, known, name)
    return loaded


def name_of(step: Any) -> str:
    """Return the reference of a step, or a name that is no reference if it cannot be imported.

    >>> name_of(functools.partial(name_of))
    'batchmill.core.user_step.value.shipping:name_of (partial)'
    """
    reference = reference_to(step)
    if reference is not None:
        return reference
    if isinstance(step, functools.partial):
        return f"{_name_in_module(step.func)} (partial)"
    if inspect.ismethod(step):
        return f"{_name_in_module(step.__func__)} (method)"
    if inspect.isfunction(step) or inspect.isclass(step):
        name = _name_in_module(step)
        # A wrapper has the name of another step, which a later run must not take for it.
        is_other = is_reference(name) and not name.startswith("__main__:")
        return f"{name} (redefined)" if is_other else name
    return f"{_name_in_module(type(step))} (object)"


def load_given_step(
    step: Any, params: Mapping[str, Any], *, search: str, file_columns: Sequence[str] = ()
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
    loaded = check_target(name, step, params, search, file_columns=file_columns, by_value=True)
    return replace(loaded, pickled=_pickled(loaded))


def _name_in_module(target: Any) -> str:
    module = getattr(target, "__module__", None) or "__main__"
    return f"{module}:{getattr(target, '__qualname__', type(target).__name__)}"


def _pickled(step: Step) -> bytes:
    """Pickle a step, with the functions and values that other processes cannot import.

    Raises StepError if it cannot be pickled, or is too large.
    """
    file = _Bounded()
    try:
        _SourcePickler(file).dump(replace(step, identity="", description={}, pickled=b""))
    except _TooLargeError:
        raise StepError(
            f"step {step.ref}: the values that it uses take more than {_MOST_BYTES >> 20} MiB. "
            "Save large data to a file, and give the step its path as a parameter."
        ) from None
    except Exception as error:
        raise StepError(
            f"step {step.ref}: cannot be sent to other processes "
            f"({type(error).__name__}: {error}). Create such values inside the function."
        ) from error
    return file.getvalue()


def pickle_digest(pickled: bytes) -> str:
    """Return the digest of a pickle, which no other bytes have. Empty without a pickle."""
    return hashlib.sha256(pickled).hexdigest() if pickled else ""


def unpickle_step(
    pickled: bytes, expected: str, planned: Mapping[str, Any], *, search: str
) -> Step:
    """Return the step that another process has pickled.

    Args:
        pickled: The pickle.
        expected: Its digest, from the process that made it.
        planned: The description of the step in the run's plan.
        search: A folder that is appended to the import path.

    Returns:
        The step. Its description has the files and the modules of this machine.

    Raises:
        StepError: The pickle is another one, or its modules cannot be imported here.
    """
    if pickle_digest(pickled) != expected:
        raise StepError(
            "the file with the step is not the one that the run has written. Run the same command "
            "again."
        )
    if search and search not in sys.path:
        sys.path.append(search)
    try:
        step: Step = cloudpickle.loads(pickled)
    except Exception as error:
        raise StepError(
            f"on {socket.gethostname()}, the step cannot be loaded ({type(error).__name__}: "
            f"{error}). Install the same libraries on all machines."
        ) from error
    tracked = {
        name: track_file(step.ref, name, file.path, file.mark)
        for name, file in step.tracked.items()
    }
    contents = {
        name: described_value(file.content)
        for name, file in tracked.items()
        if name in planned["params"]
    }
    code = {key: entry for key, entry in planned["code"].items() if key.startswith(":")}
    imports = imported_values(planned)
    description = {
        **planned,
        "params": {**planned["params"], **contents},
        "code": code | described(reachable_code(imports, imports).definitions),
    }
    return replace(step, tracked=tracked, description=description)
