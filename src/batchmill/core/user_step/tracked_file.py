"""Parameters that name a file or folder whose content is part of the step's identity."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from batchmill.core.digests import digest
from batchmill.core.security.allowlist import refused_inputs
from batchmill.core.storage.fingerprints import content_of
from batchmill.core.user_step.params import hints_of
from batchmill.errors import OptionError, StepError

Refused = Callable[[Sequence[str]], Mapping[int, str]]
# For each file: its path, size, time of modification, time of change, and inode.
FileState = tuple[tuple[str, int, int, int, int], ...]


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
        files = self._files(path)
        parts = [part for name, file in files.items() for part in (name, content_of(file))]
        return f"a folder of {len(files)}: {digest('content', *parts)}"

    def state(self, path: str) -> FileState:
        """Return the state of a file, or of the files in a folder, without reading them.

        Raises OSError.
        """
        return state_of(self._files(path).values() if os.path.isdir(path) else [path])

    def _files(self, folder: str) -> dict[str, str]:
        """Return the paths of the files in a folder that count, by their sorted relative paths."""
        walked = os.walk(folder, onerror=_raise)
        paths = [os.path.join(place, name) for place, _, names in walked for name in names]
        counted = [path for path in paths if path.lower().endswith(self.suffixes or "")]
        return dict(sorted((os.path.relpath(path, folder), path) for path in counted))


@dataclass(frozen=True)
class TrackedFile:
    """A file or folder whose content is part of a step's identity.

    Attributes:
        path: The absolute path.
        mark: Says which files of a folder count.
        state: The sizes and times of the files, before their content was read.
        content: The digest of the content.
    """

    path: str
    mark: ContentCounts
    state: FileState
    content: str

    @classmethod
    def read(cls, path: str, mark: ContentCounts) -> "TrackedFile":
        """Read a file or folder. Raises OSError."""
        state = mark.state(path)
        return cls(path, mark, state, mark.content(path))


def state_of(paths: Iterable[str]) -> FileState:
    """Return the state of each file. Raises OSError."""
    stats = ((path, os.stat(path)) for path in paths)
    return tuple((path, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for path, s in stats)


def track_files(
    ref: str, target: Any, params: Mapping[str, Any], search: str
) -> tuple[dict[str, Any], dict[str, TrackedFile]]:
    """Resolve the paths that ContentCounts marks, and read their contents' digests.

    Args:
        ref: The step's reference, for messages.
        target: The step.
        params: Its checked parameters.
        search: The folder that relative paths are relative to.

    Returns:
        The parameters with absolute paths, and the files by parameter.

    Raises:
        StepError: A file or folder does not exist, or a value is no path.
        OptionError: It may not be read here.
    """
    placed, tracked = dict(params), {}
    for name, hint in hints_of(target).items():
        # Also the mark in `Annotated[str, ContentCounts()] | None`.
        kinds = (hint, *get_args(hint))
        notes = [note for kind in kinds for note in getattr(kind, "__metadata__", ())]
        marks = [note for note in notes if type(note) is ContentCounts]
        value = params.get(name)
        if marks and value is not None:
            if not isinstance(value, str | Path):
                raise StepError(
                    f"step {ref}: parameter {name!r} is a {type(value).__name__}; ContentCounts() "
                    "needs one path. Give several files as one folder."
                )
            path = os.path.abspath(os.path.join(search, value))
            placed[name] = type(value)(path)
            tracked[name] = track_file(ref, name, path, marks[0])
    return placed, tracked


def track_file(ref: str, name: str, path: str, mark: ContentCounts) -> TrackedFile:
    """Read a file or folder of a parameter as this machine has it.

    Args:
        ref: The step's reference, for messages.
        name: The parameter, for messages.
        path: The absolute path.
        mark: The mark of the parameter.

    Returns:
        Its state and the digest of its content.

    Raises:
        StepError: It does not exist here.
        OptionError: It may not be read here.
    """
    for refused in mark.refused([path]).values():
        raise OptionError(f"step {ref}: parameter {name!r}: {refused}")
    try:
        return TrackedFile.read(path, mark)
    except OSError as error:
        raise StepError(
            f"step {ref}: parameter {name!r}: {error.filename or path}: {error.strerror}. "
            "Give the path of a file or folder that exists on every machine."
        ) from error


def _raise(error: OSError) -> None:
    raise error
