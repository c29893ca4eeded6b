"""The paths and URLs that may be read or written, if an environment variable limits them."""

import os
from collections.abc import Sequence
from urllib.parse import unquote

from batchmill.urls import control_fault, is_url, is_web, without_file_scheme

INPUTS = "BATCHMILL_ALLOWED_INPUTS"
DATASETS = "BATCHMILL_ALLOWED_DATASETS"


def listed_in(variable: str) -> list[str] | None:
    """Return the comma-separated entries of an environment variable; None if it is not set."""
    value = os.environ.get(variable)
    if value is None:
        return None
    return [entry.strip() for entry in value.split(",") if entry.strip()]


def roots_in(variable: str) -> list[str] | None:
    """Return the folders and URLs that an environment variable lists; None if it is not set."""
    listed = listed_in(variable)
    return None if listed is None else [_settled(entry) for entry in listed]


def is_inside(place: str, roots: Sequence[str]) -> bool:
    """Return whether a path or URL is one of the `roots`, or below one."""
    real = _settled(place)
    if is_url(real) and ".." in unquote(real).split("/"):
        return False  # A web server may resolve it to a place outside.
    if is_web(real) and control_fault(real):
        return False
    return any(f"{real}/".startswith(f"{root.rstrip('/')}/") for root in roots)


def _settled(place: str) -> str:
    """Return a path with all links resolved. Return a URL unchanged."""
    place = without_file_scheme(place)
    return place if is_url(place) else os.path.realpath(os.path.expanduser(place))
