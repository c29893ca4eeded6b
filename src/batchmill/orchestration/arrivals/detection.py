"""Find files that arrived in a folder or bucket prefix, and decide when to announce them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import pyarrow as pa

from batchmill.core.ledger.ledger import Ledger
from batchmill.core.manifest import load_manifest
from batchmill.core.storage import is_url
from batchmill.errors import ManifestError

# The ledger's columns for the fields of FileVersion.
_COLUMNS = ("size", "mtime_ns", "etag")
_NANOSECONDS = 1_000_000_000
# A file whose time is further in the future comes from a wrong clock. Its time is ignored.
_CLOCK_SKEW_SECONDS = 600.0


class FileVersion(NamedTuple):
    """The size in bytes, the time in nanoseconds since 1970, and the ETag of a listed file."""

    size: int
    mtime_ns: int
    etag: str | None = None


Listing = Mapping[str, FileVersion]


def list_files(source: str, pattern: str = "*", *, folders: bool = False) -> dict[str, FileVersion]:
    """List the files below a folder or URL that a run over it would have as inputs.

    Args:
        source: The folder, or the URL of a bucket prefix.
        pattern: Glob that a file's relative path or name must match.
        folders: True if each sub-folder is one input.

    Returns:
        The files by name. There may be none.

    Raises:
        ManifestError: The source cannot be read, or a run would reject it.
    """
    if is_url(source):
        # A URL that ends with a slash is never read as a file.
        source = f"{source.rstrip('/')}/"
    elif not os.path.isdir(source):
        raise ManifestError(source, ["no such folder. Check the path, and whether it is mounted."])
    manifest = load_manifest(source, pattern=pattern, may_be_empty=True, folders=folders)
    return _versions(manifest.inputs)


def recorded_versions(ledger: Ledger) -> dict[str, FileVersion]:
    """Return the inputs that a dataset's ledger records, with any outcome and any step.

    Args:
        ledger: The dataset's ledger.

    Returns:
        The recorded inputs by name.

    Raises:
        LedgerError: The ledger cannot be read.
    """
    return _versions(ledger.records(("input", *_COLUMNS)))


def _versions(table: pa.Table) -> dict[str, FileVersion]:
    rows = zip(*(table[name].to_pylist() for name in _COLUMNS), strict=True)
    return dict(zip(table["input"].to_pylist(), map(FileVersion._make, rows), strict=True))


def new_or_changed(files: Listing, known: Listing) -> dict[str, FileVersion]:
    """Return the files that are new or changed.

    Args:
        files: The files that exist now.
        known: The files that are known already.

    Returns:
        The files whose version is not in `known`.

    >>> known = {"a": FileVersion(1, 5), "b": FileVersion(1, 5)}
    >>> now = {"a": FileVersion(1, 5), "b": FileVersion(2, 5), "c": FileVersion(3, 5)}
    >>> sorted(new_or_changed(now, known))
    ['b', 'c']
    """
    return {name: file for name, file in files.items() if not _is_same(file, known.get(name))}


def _is_same(file: FileVersion, known: FileVersion | None) -> bool:
    """Return whether a file is the known version. A missing ETag is not compared."""
    if known is None or file[:2] != known[:2]:
        return False
    return file.etag is None or known.etag is None or file.etag == known.etag


def age_seconds(file: FileVersion, wall: float) -> float:
    """Return how many seconds before `wall` a file was last changed, by its own time."""
    return wall - file.mtime_ns / _NANOSECONDS


def complete_files(files: Listing, min_age: float, wall: float) -> dict[str, FileVersion]:
    """Return the files that are complete, judged by one listing and the files' own times.

    Args:
        files: The files that exist now.
        min_age: How long a file must be unchanged.
        wall: When they were listed, by time.time().

    Returns:
        The files that are old enough, and the files whose time is impossibly far in the future.
    """
    return {name: file for name, file in files.items() if not _is_young(file, min_age, wall)}


def _is_young(file: FileVersion, min_age: float, wall: float) -> bool:
    """Return whether a file may be incomplete, by its own time. A wrong clock is ignored."""
    return -max(_CLOCK_SKEW_SECONDS, min_age) < age_seconds(file, wall) < min_age


@dataclass
class _Waiting:
    """A file that is not announced yet.

    Attributes:
        version: Its version in the latest listing.
        since: When this version was first seen, by the steady clock.
        complete_since: When it became complete. Infinity if it is not complete yet.
    """

    version: FileVersion
    since: float
    complete_since: float = inf


class Arrivals:
    """Decide from successive listings of a source which files to announce, and when.

    A file is complete when it was seen unchanged for `min_age`. A file of a `local` source is also
    complete if its time was that long ago when it was first seen. A file that vanishes and returns
    is announced again once it is complete.
    """

    def __init__(self, min_age: float, *, local: bool, known: Listing | None = None) -> None:
        """Start without any listing.

        Args:
            min_age: How long a file must be unchanged.
            local: True if the files' times come from this machine's file systems.
            known: Files that need no announcement unless they change or vanish.
        """
        self._min_age = min_age
        self._local = local
        self._announced: dict[str, FileVersion] = dict(known or {})
        # The run for the earlier announcement may have missed a vanished file, so the file is
        # announced again when it returns. It must first become complete again: an unreliable
        # listing that sometimes omits it would cause an announcement each time.
        self._vanished: set[str] = set()
        self._waiting: dict[str, _Waiting] = {}

    @property
    def waiting(self) -> int:
        """The number of files that are not announced yet."""
        return len(self._waiting)

    def update(self, files: Listing, now: float, wall: float) -> None:
        """Process a listing.

        Args:
            files: The files that exist now.
            now: When they were listed, by a steady clock.
            wall: When they were listed, by time.time().
        """
        for gone in self._waiting.keys() - files.keys():
            del self._waiting[gone]
        for gone in self._announced.keys() - files.keys():
            del self._announced[gone]
            self._vanished.add(gone)
        for name, file in files.items():
            waiting = self._waiting.get(name)
            if waiting and waiting.version == file:
                if waiting.complete_since == inf and self._is_complete(waiting, now, wall):
                    waiting.complete_since = now
            elif _is_same(file, self._announced.get(name)):
                self._waiting.pop(name, None)
            else:
                is_first = waiting is None and name not in self._vanished
                is_old = self._local and is_first and age_seconds(file, wall) >= self._min_age
                complete_since = now if is_old or not self._min_age else inf
                self._waiting[name] = _Waiting(file, since=now, complete_since=complete_since)

    def _is_complete(self, waiting: _Waiting, now: float, wall: float) -> bool:
        if now - waiting.since < self._min_age:
            return False
        # The next run checks only the file's time. A clock that is fast may have set it.
        return not (self._local and _is_young(waiting.version, self._min_age, wall))

    def due(self, now: float) -> dict[str, FileVersion]:
        """Return the files to announce now, as one batch.

        Complete files are due when no other file is still changing, or when the first of them has
        waited for another `min_age`. So a file that never stops growing does not delay the others.

        Args:
            now: The current time, by the steady clock.

        Returns:
            The files by name. Usually empty.
        """
        complete = {name: w for name, w in self._waiting.items() if w.complete_since < inf}
        first = min((w.complete_since for w in complete.values()), default=now)
        if len(complete) < len(self._waiting) and now - first < self._min_age:
            return {}
        return {name: w.version for name, w in complete.items()}

    def mark_announced(self, batch: Listing) -> None:
        """Record that a batch was announced. Without this call, its files stay due.

        Args:
            batch: The files that `due` returned.
        """
        self._announced.update(batch)
        self._vanished -= batch.keys()
        for name, file in batch.items():
            waiting = self._waiting.get(name)
            if waiting and waiting.version == file:
                del self._waiting[name]
