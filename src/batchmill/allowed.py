"""What may be run, read and written here, where the environment says so.

A form in which a step can be named is a way to run code. Whoever runs a worker can set, each with
entries that commas separate:

    BATCHMILL_ALLOWED_STEPS      modules, packages or single steps: mylab.steps, mylab.audio:split
    BATCHMILL_ALLOWED_INPUTS     folders and URLs that manifests and inputs must be in
    BATCHMILL_ALLOWED_DATASETS   folders and URLs that datasets must be in

One that is not set allows everything; one that is set and empty, nothing.
"""

import inspect
import os
from collections.abc import Sequence
from urllib.parse import unquote

from batchmill.errors import OptionError
from batchmill.storage.urls import is_url, shown_url, without_file_scheme

STEPS = "BATCHMILL_ALLOWED_STEPS"
INPUTS = "BATCHMILL_ALLOWED_INPUTS"
DATASETS = "BATCHMILL_ALLOWED_DATASETS"


def check_step(ref: str) -> None:
    """Raise OptionError for a step that may not be run here; imports nothing."""
    entries = _entries(STEPS)
    # An attribute's attribute may be anything that the module has imported.
    nested = "." in ref.partition(":")[2]
    if entries is not None and ref not in entries and (nested or not _is_below(ref, entries)):
        raise OptionError(f"step {ref}: {_refusal('may be run', STEPS)}")


def check_origin(ref: str, target: object) -> None:
    """Raise OptionError for a step that its module has imported from where none may be run."""
    entries = _entries(STEPS)
    if entries is None or ref in entries:
        return
    if not (inspect.isfunction(target) or inspect.isbuiltin(target) or inspect.isclass(target)):
        raise OptionError(
            f"step {ref}: is neither a function nor a class, and nothing tells where it comes "
            f"from. It may be run here only if {STEPS} names it in full."
        )
    origin = f"{target.__module__}:{target.__qualname__}"
    if not _is_below(origin, entries):
        raise OptionError(f"step {ref}: is {origin}, which {_refusal('may be run', STEPS)}")


def check_dataset(place: str) -> None:
    """Raise OptionError for a dataset at a path or URL where none may be."""
    allowed = _roots(DATASETS)
    if allowed is not None and not _is_inside(place, allowed):
        raise OptionError(f"{shown_url(place)}: {_refusal('may hold datasets', DATASETS)}")


def refused_inputs(places: Sequence[str]) -> dict[int, str]:
    """Return which inputs or manifests may not be read, by their number, and why."""
    allowed = _roots(INPUTS)
    if allowed is None:
        return {}
    reason = _refusal("may be read", INPUTS)
    return {
        number: f"{shown_url(place)!r} {reason}"
        for number, place in enumerate(places)
        if not _is_inside(place, allowed)
    }


def restricts_inputs() -> bool:
    """Tell whether only some places may be read."""
    return _entries(INPUTS) is not None


def restrictions() -> list[str]:
    """Return which of the variables are set."""
    return [name for name in (STEPS, INPUTS, DATASETS) if _entries(name) is not None]


def _entries(variable: str) -> list[str] | None:
    value = os.environ.get(variable)
    if value is None:
        return None
    return [entry.strip() for entry in value.split(",") if entry.strip()]


def _is_below(ref: str, entries: Sequence[str]) -> bool:
    return any(ref.startswith((f"{entry}.", f"{entry}:")) for entry in entries)


def _roots(variable: str) -> list[str] | None:
    entries = _entries(variable)
    return None if entries is None else [_settled(entry) for entry in entries]


def _is_inside(place: str, roots: Sequence[str]) -> bool:
    real = _settled(place)
    if is_url(real) and ".." in unquote(real).split("/"):
        return False  # A web server may take it for a way out.
    return any(f"{real}/".startswith(f"{root.rstrip('/')}/") for root in roots)


def _settled(place: str) -> str:
    """Return a URL, or the path that one leads to when all its links are followed."""
    place = without_file_scheme(place)
    return place if is_url(place) else os.path.realpath(os.path.expanduser(place))


def _refusal(what: str, variable: str) -> str:
    listed = ", ".join(_entries(variable) or []) or "none"
    return (
        f"is not among what {what} here ({variable}: {listed}). Choose from these, or ask whoever "
        "runs the worker."
    )
