"""Import steps, and objects that parameters name, by package.module:attribute."""

import importlib
import re
import sys
import traceback
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from batchmill.core.security.allowlist import check_origin, check_step
from batchmill.errors import StepError

_REFERENCE = re.compile(r"[\w.]+:[\w.]+")


def is_reference(text: str) -> bool:
    """Return whether a text has the form package.module:attribute."""
    return _REFERENCE.fullmatch(text) is not None


def resolve_reference(reference: str, what: str, search: str = "") -> Any:
    """Import the object that a parameter names.

    Args:
        reference: package.module:attribute.
        what: The kind of the object, for messages.
        search: A folder that is appended to the import path, and stays there.

    Returns:
        The object.

    Raises:
        StepError: It cannot be imported.
        OptionError: It may not be run here.
    """
    if not is_reference(reference):
        raise StepError(f"{what} {reference!r}: expected package.module:attribute.")
    check_step(reference)
    return _resolve(reference, what, search)


def import_step(ref: str, search: str) -> Any:
    """Import a step by its reference.

    Args:
        ref: The reference.
        search: A folder that is appended to the import path, and stays there.

    Raises:
        StepError: It cannot be imported.
        OptionError: It may not be run here.
    """
    check_step(ref)
    module_name, colon, attribute = ref.partition(":")
    if not colon or not module_name or not attribute:
        raise StepError(
            f"step {ref!r}: expected package.module:attribute, such as batchmill.steps.words:split."
        )
    if module_name.endswith(".py") or "/" in module_name:
        hint = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise StepError(
            f"step {ref!r}: {module_name!r} is a path; expected a module, such as "
            f"{hint}:{attribute}."
        )
    if module_name == "__main__":
        raise StepError(
            f"step {ref!r}: other processes cannot import __main__. Move the step to a module."
        )
    return _resolve(ref, "step", search)


def _resolve(reference: str, what: str, search: str) -> Any:
    module_name, _, attribute = reference.partition(":")
    label = f"{what} {reference}"
    value: Any = _import_module(label, module_name, search)
    for part in attribute.split("."):
        try:
            value = getattr(value, part)
        except AttributeError as error:
            members = getattr(value, "__dict__", {})
            names = [name for name in dir(value) if name.isidentifier() and name[0] != "_"]
            defined = [n for n in names if getattr(members.get(n), "__module__", "") == module_name]
            raise StepError(
                f"{label}: {getattr(value, '__name__', module_name)} has no {part!r}. "
                f"It has: {', '.join(defined or names) or 'nothing'}."
            ) from error
        except Exception as error:  # A module may import the attribute only now.
            raise StepError(
                f"{label}: cannot be imported ({type(error).__name__}: {error})."
            ) from error
    check_origin(reference, value)
    return value


def _import_module(label: str, module_name: str, search: str) -> ModuleType:
    """Import a module, with `search` appended to the import path. It stays there."""
    if search and search not in sys.path:
        sys.path.append(search)
    # The import system caches folder listings, and may miss a new file.
    importlib.invalidate_caches()
    token = _importing.set(module_name)
    try:
        return importlib.import_module(module_name)
    except StepError as error:
        # The modules of built-in steps name the library that is missing, and how to install it.
        raise StepError(f"{label}: {error}") from error
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name == missing or module_name.startswith(f"{missing}."):
            where = f" or in {search}" if search else ""
            raise StepError(
                f"{label}: no module {missing!r} on the import path{where}. "
                "Check the spelling, install it, or change to its folder."
            ) from error
        raise StepError(
            f"{label}: {module_name} imports {missing!r}, which is not installed. "
            f"Install it: pip install {missing.partition('.')[0]}"
        ) from error
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        place = f" (line {frames[-1].lineno} of {frames[-1].filename})" if frames else ""
        if isinstance(error, SyntaxError):
            place = ""  # Its text has the file and the line. The frame is one of the import.
        raise StepError(
            f"{label}: importing {module_name} failed with {type(error).__name__}: {error}"
            f"{place}. Fix the module, and check: python -c 'import {module_name}'"
        ) from error
    finally:
        _importing.reset(token)


# The module that is being imported as a step. Empty outside of an import.
_importing: ContextVar[str] = ContextVar("importing", default="")


def refuse_nested_run() -> None:
    """Check that no step module is being imported, because it would start a run in each worker.

    Raises:
        StepError: The module of a step starts a run while it is imported.
    """
    module = _importing.get()
    if module:
        raise StepError(
            f"importing {module} starts a run, so each worker would start another one. "
            "Put the call under: if __name__ == '__main__':"
        )
