"""Import objects that parameters name as package.module:attribute."""

import re
from pkgutil import resolve_name
from typing import Any

from batchmill.errors import BatchmillError, StepError
from batchmill.security.allowlist import check_origin, check_step

_REFERENCE = re.compile(r"[\w.]+:[\w.]+")


def is_reference(text: str) -> bool:
    """Return whether a text has the form package.module:attribute."""
    return _REFERENCE.fullmatch(text) is not None


def resolve_reference(reference: str, what: str) -> Any:
    """Import the object that a parameter names.

    Args:
        reference: package.module:attribute.
        what: The kind of the object, for messages.

    Returns:
        The object.

    Raises:
        StepError: It cannot be imported.
        OptionError: It may not be run here.
    """
    if not is_reference(reference):
        raise StepError(f"{what} {reference!r}: expected package.module:attribute.")
    check_step(reference)
    try:
        found = resolve_name(reference)
    except BatchmillError:
        raise
    except Exception as error:
        raise StepError(
            f"{what} {reference}: cannot be imported ({type(error).__name__}: {error}). "
            "Check the spelling, install it, or change to its folder."
        ) from error
    check_origin(reference, found)
    return found
