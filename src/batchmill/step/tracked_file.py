"""Parameters that name a file or folder whose content is part of the step's identity."""

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
    """Marks a parameter that is a path. The content of the file is part of the step's identity.

    `words: Annotated[str | None, ContentCounts(".csv")] = None`. A change of the content re-runs
    all inputs. A relative path is relative to the folder where the run was started.
    """

    def __init__(self, *suffixes: str, refused: Refused = refused_inputs) -> None:
        """Mark a parameter.

        Args:
            *suffixes: The suffixes of the files in a folder that count. Default: all files.
            refused: Returns the reasons for paths that may not be read here, by index.
        """
        self.suffixes = tuple(suffix.lower() for suffix in suffixes)
        self.refused = refused

    def content(self, path: str) -> str:
        """Return the digest of a file or folder.

        Args:
            path: Its path.

        Returns:
            The digest of the content.

        Raises:
            OSError: It cannot be read.
        """
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
    """Resolve the paths that ContentCounts marks, and read their contents' digests.

    Args:
        ref: The step's reference, for messages.
        target: The step.
        params: Its checked parameters.
        search: The folder that relative paths are relative to.

    Returns:
        The parameters with absolute paths, and the digests by parameter.

    Raises:
        StepError: A file or folder does not exist.
        OptionError: It may not be read here.
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
            "Give the path of a file or folder that exists on every machine."
        ) from error


def _raise(error: OSError) -> None:
    raise error
