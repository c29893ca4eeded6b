"""Restrict the steps that may run, and the places that may be read or written.

A user who can name a step in a form can run any code. The administrator of a worker can therefore
set these environment variables. Each is a list with commas:

- `BATCHMILL_ALLOWED_STEPS`: modules, packages or single steps: mylab.steps, mylab.audio:split.
- `BATCHMILL_ALLOWED_INPUTS`: folders and URLs that must contain the manifests, the inputs, and the
  files whose content is part of a step.
- `BATCHMILL_ALLOWED_DATASETS`: folders and URLs that must contain the datasets.
- `BATCHMILL_ALLOWED_MODELS`: folders that must contain the model files. A model file is code.

`BATCHMILL_CONFINE=1` confines all steps, as `--confine` does.

A variable that is not set allows everything. A variable that is set and empty allows nothing. There
is one exception: if steps are restricted, a model file may be loaded only from a place in
`BATCHMILL_ALLOWED_MODELS`.
"""

import inspect
import os
from collections.abc import Iterable, Sequence
from urllib.parse import unquote

from batchmill.core.urls import control_fault, is_url, is_web, shown_url, without_file_scheme
from batchmill.errors import OptionError

STEPS = "BATCHMILL_ALLOWED_STEPS"
INPUTS = "BATCHMILL_ALLOWED_INPUTS"
DATASETS = "BATCHMILL_ALLOWED_DATASETS"
MODELS = "BATCHMILL_ALLOWED_MODELS"
CONFINE = "BATCHMILL_CONFINE"


def check_step(ref: str) -> None:
    """Raise OptionError for a step that may not be run here; imports nothing."""
    entries = listed_in(STEPS)
    # A nested attribute can be anything that the module has imported.
    nested = "." in ref.partition(":")[2]
    if entries is not None and ref not in entries and (nested or not _is_below(ref, entries)):
        raise OptionError(f"step {ref}: {_refusal('may not be run', STEPS)}")


def check_origin(ref: str, target: object) -> None:
    """Raise OptionError for a step that is imported from a module that is not allowed."""
    entries = listed_in(STEPS)
    if entries is None or ref in entries:
        return
    if not (inspect.isfunction(target) or inspect.isbuiltin(target) or inspect.isclass(target)):
        raise OptionError(
            f"step {ref}: is neither a function nor a class, so its origin cannot be checked. It "
            f"may be run here only if {STEPS} contains its full name."
        )
    origin = f"{target.__module__}:{target.__qualname__}"
    if not _is_below(origin, entries):
        raise OptionError(f"step {ref}: is {origin}, which {_refusal('may not be run', STEPS)}")


def check_dataset(place: str) -> None:
    """Raise OptionError for a path or URL that may not contain a dataset."""
    allowed = roots_in(DATASETS)
    if allowed is not None and not is_inside(place, allowed):
        raise OptionError(f"{shown_url(place)}: {_refusal('may not contain datasets', DATASETS)}")


def refused_inputs(places: Iterable[str]) -> dict[int, str]:
    """Return why inputs or manifests may not be read, by their index in `places`."""
    allowed = roots_in(INPUTS)
    return {} if allowed is None else _refused(places, allowed, "may not be read", INPUTS)


def check_input(place: str) -> None:
    """Raise OptionError for an input that may not be read here."""
    for refused in refused_inputs([place]).values():
        raise OptionError(refused)


def refused_models(places: Sequence[str]) -> dict[int, str]:
    """Return why model files may not be loaded, by their index in `places`.

    To load a model is to run code, because torch unpickles parts of it. So if steps are restricted,
    model files need an explicit permission.
    """
    allowed = roots_in(MODELS)
    if allowed is None and listed_in(STEPS) is None:
        return refused_inputs(places)
    return _refused(places, allowed or [], "may not be loaded as a model", MODELS)


def confinement_is_required() -> bool:
    """Return whether all steps must be confined."""
    return os.environ.get(CONFINE, "0").strip() not in ("", "0")


def restrictions() -> list[str]:
    """Return the names of the variables that are set."""
    return [name for name in (STEPS, INPUTS, DATASETS, MODELS) if listed_in(name) is not None]


def _refused(
    places: Iterable[str], allowed: Sequence[str], what: str, variable: str
) -> dict[int, str]:
    reason = _refusal(what, variable)
    return {
        number: f"{shown_url(place)!r} {reason}"
        for number, place in enumerate(places)
        if not is_inside(place, allowed)
    }


def _is_below(ref: str, entries: Sequence[str]) -> bool:
    return any(ref.startswith((f"{entry}.", f"{entry}:")) for entry in entries)


def _refusal(what: str, variable: str) -> str:
    listed = ", ".join(listed_in(variable) or []) or "nothing"
    return (
        f"{what} here ({variable} allows: {listed}). Use an allowed one, or contact the "
        "administrator of the worker."
    )


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
