"""Parameters that name a file or folder whose content is part of what a step is."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from batchmill.allowlist import refused_inputs
from batchmill.digests import digest
from batchmill.errors import OptionError, StepError
from batchmill.step.params import hints_of
from batchmill.storage.fingerprints import content_of

Refused = Callable[[Sequence[str]], Mapping[int, str]]


class ContentCounts:
    """Marks a parameter that is a path: what is there, not what it is called, makes the step.

    `words: Annotated[str | None, ContentCounts(".csv")] = None`. Of a folder, those files below it
    count that have one of these suffixes (all, if none is given), with their relative names. A
    relative path is taken from where the run was started. When the content changes, the step is
    another, and all inputs are executed again. `refused` tells which paths may not be read here.
    """

    def __init__(self, *suffixes: str, refused: Refused = refused_inputs) -> None:
        self.suffixes = tuple(suffix.lower() for suffix in suffixes)
        self.refused = refused

    def content(self, path: str) -> str:
        """Return the digest of what is there. Raises OSError."""
        if not os.path.isdir(path):
            return f"a file: {content_of(path)}"
        names = sorted(self._names(path))
        parts = [part for name in names for part in (name, content_of(os.path.join(path, name)))]
        return f"a folder of {len(names)}: {digest('content', *parts)}"

    def _names(self, folder: str) -> Iterator[str]:
        for place, _, names in os.walk(folder, onerror=_raise):
            for name in names:
                if not self.suffixes or name.lower().endswith(self.suffixes):
                    yield os.path.relpath(os.path.join(place, name), folder)


def take_contents(
    ref: str, target: Any, params: Mapping[str, Any], search: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a step's params with absolute paths where ContentCounts marks them, and the contents.

    Relative ones are taken from `search`. Raises StepError for what is not there, OptionError for
    what may not be read here.
    """
    placed, contents = dict(params), {}
    for name, hint in hints_of(target).items():
        mark = next(
            (m for m in getattr(hint, "__metadata__", ()) if type(m) is ContentCounts), None
        )
        value = params.get(name)
        if mark and value is not None:
            path = os.path.abspath(os.path.join(search, value))
            placed[name] = type(value)(path)
            contents[name] = _content(ref, name, path, mark)
    return placed, contents


def _content(ref: str, name: str, path: str, mark: ContentCounts) -> str:
    for refused in mark.refused([path]).values():
        raise OptionError(f"step {ref}: parameter {name!r}: {refused}")
    try:
        return mark.content(path)
    except OSError as error:
        raise StepError(
            f"step {ref}: parameter {name!r}: {error.filename or path}: {error.strerror}. "
            "Give the path of a file or folder, which each machine must see."
        ) from error


def _raise(error: OSError) -> None:
    raise error
