"""The installed libraries that the process of a step has imported, with their versions.

A library counts if the code of the step names it, if a library that counts requires it, or if it
was imported after the step. The others were imported by batchmill.
"""

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from typing import Any

from batchmill.core.user_step.code.files import is_users, source_file

_OURS = __name__.partition(".")[0]
_NAME = re.compile("[A-Za-z0-9._-]+")
_PYTHON = "Python"
# The end of the name of a program in a set.
_PROGRAM = " --version"
_PROGRAM_SECONDS, _SHOWN_CHARACTERS = 10.0, 80


def library_of(module: str) -> str | None:
    """Return the outermost package of an installed module that has a file. Imports nothing.

    Libraries that share a namespace such as `google` have a package each inside it. None for
    modules of the user, of Python and of batchmill.
    """
    parts = module.split(".")
    if parts[0] == _OURS:
        return None
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        file = source_file(name)
        if file:
            return None if is_users(name, file, set()) else name
    return None


class ImportedFiles:
    """Finds the files of libraries that this process imports, or that it imported as a fork."""

    def __init__(self) -> None:
        self._known: frozenset[str] = frozenset()

    def begin(self) -> None:
        """Ignore the modules that are imported already. Call this before the step is imported."""
        self._known = self._known or frozenset(sys.modules)

    def new(self) -> tuple[str, ...]:
        """Return the files of the libraries that were imported since the last call."""
        if not self._known or len(sys.modules) == len(self._known):
            return ()
        names = sys.modules.keys() - self._known
        self._known |= names
        libraries = {library_of(name) for name in names} - {None}
        return tuple(sorted(filter(None, (source_file(name) for name in libraries if name))))


imported_files = ImportedFiles()


class StepLibraries:
    """The libraries of a step in the process of its shard.

    Attributes:
        imported: The files of libraries that its workers have imported.
    """

    def __init__(self, step: Any, ref: str, named: Iterable[str]) -> None:
        """Find the versions of Python and of the programs of the step.

        Args:
            step: The step.
            ref: Its reference.
            named: The modules of libraries that its code names.
        """
        self._named = {file for name in named if (file := source_file(name))}
        self._fixed = {_PYTHON: platform.python_version(), **program_versions(step)}
        ours = _installed(_OURS)
        if ours and ref.startswith(f"{_OURS}.steps."):
            self._fixed[_OURS] = ours.version
        self.imported: set[str] = set()
        self._count = 0
        self._text = ""

    def text(self) -> str:
        """Return the libraries and their versions, as a JSON object."""
        self.imported.update(imported_files.new())
        imported = [*self.imported]  # Another thread may add files.
        if len(imported) > self._count or not self._text:
            self._count = len(imported)
            by_key = _with_requirements(_owners(self._named))
            others = [library for library in _owners(imported) if _key(library) not in by_key]
            ours = _with_requirements(filter(None, [_installed(_OURS)])) if others else {}
            by_key |= _with_requirements(library for library in others if _key(library) not in ours)
            versions = {library.name: library.version for library in by_key.values()}
            self._text = json.dumps(self._fixed | versions, sort_keys=True)
        return self._text


def program_versions(step: Any) -> dict[str, str]:
    """Return what the programs in the attribute `tools` of a step print as their version."""
    versions = {}
    named = getattr(step, "tools", ())
    for program in [named] if isinstance(named, str) else named:
        with suppress(OSError, subprocess.TimeoutExpired):
            printed = subprocess.run(
                [program, "--version"],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_PROGRAM_SECONDS,
                check=False,
            )
            # Some programs print it as a part of an error.
            line = next(filter(None, (printed.stdout + printed.stderr).splitlines()), "")
            versions[program + _PROGRAM] = line[:_SHOWN_CHARACTERS]
    return versions


def present_versions(names: Iterable[str], step: Any) -> dict[str, str]:
    """Return the versions that a run on this machine would use of some libraries.

    Those that are not installed here are left out, because the nodes of a cluster may have them.
    No program is started that only a dataset names.
    """
    versions = {_PYTHON: platform.python_version(), **program_versions(step)}
    for name in names:
        library = _installed(name)
        if library:
            versions.setdefault(name, library.version)
    return {name: version for name, version in versions.items() if name in {*names}}


def _owners(files: Iterable[str]) -> list[Distribution]:
    return [owner for file in sorted(files) if (owner := _owner(file))]


def _owner(file: str) -> Distribution | None:
    """Return the distribution that has installed a file. None without one."""
    place = os.path.realpath(file)
    for candidate in _candidates(os.path.basename(file).partition(".")[0], place):
        root = os.path.realpath(str(candidate.locate_file(""))) + os.sep
        if place.startswith(root) and f"\n{place.removeprefix(root)}," in _record(candidate):
            return candidate
    return None


def _candidates(name: str, place: str) -> Iterator[Distribution]:
    """Yield the installed distributions, first those that most likely have a file."""
    if name == "__init__":
        name = os.path.basename(os.path.dirname(place))
    yield from filter(None, [_installed(name)])
    yield from sorted(
        distributions(), key=lambda library: name not in (library.read_text("top_level.txt") or "")
    )


def _installed(name: str) -> Distribution | None:
    with suppress(PackageNotFoundError, ValueError):  # ValueError: the name is empty.
        return distribution(name)
    return None


def _record(library: Distribution) -> str:
    return "\n" + (library.read_text("RECORD") or "")


def _key(library: Distribution) -> str:
    """Return the normalized name. It is empty if the metadata has been removed meanwhile."""
    return re.sub("[-_.]+", "-", library.name or "").lower()


def _with_requirements(roots: Iterable[Distribution]) -> dict[str, Distribution]:
    """Return distributions and those that they require, if they are imported."""
    by_key: dict[str, Distribution] = {}
    waiting = [*roots]
    while waiting:
        library = waiting.pop()
        key = _key(library)
        if key and key not in by_key:
            by_key[key] = library
            waiting += filter(_is_imported, _requirements(library))
    return by_key


def _requirements(library: Distribution) -> Iterator[Distribution]:
    """Yield the installed distributions that a library requires, without extras except our own."""
    is_ours = _key(library) == _OURS
    for text in library.requires or ():
        name = _NAME.match(text)
        # Most texts name extras. To search the folders for their libraries would take most time.
        if name and (is_ours or "extra ==" not in text):
            required = _installed(name[0])
            if required:
                yield required


def _is_imported(library: Distribution) -> bool:
    """Return whether this process has imported a module of a distribution."""
    files = (line.partition(",")[0] for line in _record(library).splitlines())
    modules = (file.partition(".")[0].removesuffix("/__init__").replace("/", ".") for file in files)
    return any(module in sys.modules for module in modules)
