"""What may be run, read and written here, where the environment says so.

A form in which a step can be named is a way to run code. Whoever runs a worker can set, each with
entries that commas separate:

    BATCHMILL_ALLOWED_STEPS      modules, packages or single steps: mylab.steps, mylab.audio:split
    BATCHMILL_ALLOWED_INPUTS     folders and URLs that manifests, inputs, and files whose content is
                                 part of a step must be in
    BATCHMILL_ALLOWED_DATASETS   folders and URLs that datasets must be in
    BATCHMILL_ALLOWED_MODELS     folders that files of models must be in, which are code, too

One that is not set allows everything; one that is set and empty, nothing. But where steps are
limited, so are the files of models: none may be loaded unless that variable allows it.
"""

import inspect
from collections.abc import Sequence

from batchmill.errors import OptionError
from batchmill.storage.allowed_places import DATASETS, INPUTS, is_inside, listed_in, roots_in
from batchmill.storage.urls import shown_url

STEPS = "BATCHMILL_ALLOWED_STEPS"
MODELS = "BATCHMILL_ALLOWED_MODELS"


def check_step(ref: str) -> None:
    """Raise OptionError for a step that may not be run here; imports nothing."""
    entries = listed_in(STEPS)
    # An attribute's attribute may be anything that the module has imported.
    nested = "." in ref.partition(":")[2]
    if entries is not None and ref not in entries and (nested or not _is_below(ref, entries)):
        raise OptionError(f"step {ref}: {_refusal('may be run', STEPS)}")


def check_origin(ref: str, target: object) -> None:
    """Raise OptionError for a step that its module has imported from where none may be run."""
    entries = listed_in(STEPS)
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
    allowed = roots_in(DATASETS)
    if allowed is not None and not is_inside(place, allowed):
        raise OptionError(f"{shown_url(place)}: {_refusal('may hold datasets', DATASETS)}")


def refused_inputs(places: Sequence[str]) -> dict[int, str]:
    """Return which inputs or manifests may not be read, by their number, and why."""
    allowed = roots_in(INPUTS)
    if allowed is None:
        return {}
    reason = _refusal("may be read", INPUTS)
    return {
        number: f"{shown_url(place)!r} {reason}"
        for number, place in enumerate(places)
        if not is_inside(place, allowed)
    }


def refused_models(places: Sequence[str]) -> dict[int, str]:
    """Return which files of models may not be loaded, by their number, and why.

    To load one is to run code (torch unpickles parts of it): so where steps are limited, only those
    may be loaded that are allowed by name.
    """
    allowed = roots_in(MODELS)
    if allowed is None and listed_in(STEPS) is None:
        return refused_inputs(places)
    reason = _refusal("may be loaded as a model", MODELS)
    return {
        number: f"{shown_url(place)!r} {reason}"
        for number, place in enumerate(places)
        if not is_inside(place, allowed or [])
    }


def restricts_inputs() -> bool:
    """Tell whether only some places may be read."""
    return listed_in(INPUTS) is not None


def restrictions() -> list[str]:
    """Return which of the variables are set."""
    return [name for name in (STEPS, INPUTS, DATASETS, MODELS) if listed_in(name) is not None]


def _is_below(ref: str, entries: Sequence[str]) -> bool:
    return any(ref.startswith((f"{entry}.", f"{entry}:")) for entry in entries)


def _refusal(what: str, variable: str) -> str:
    listed = ", ".join(listed_in(variable) or []) or "none"
    return (
        f"is not among what {what} here ({variable}: {listed}). Choose from these, or ask whoever "
        "runs the worker."
    )
