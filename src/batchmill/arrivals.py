"""What has arrived in a folder or bucket prefix, and when it may be announced."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from batchmill.errors import ManifestError
from batchmill.ledger.ledger import Ledger
from batchmill.manifest import load_manifest
from batchmill.storage import is_url

# How the ledger calls what a look shows.
_COLUMNS = ("size", "mtime_ns", "etag")
_NANOSECONDS = 1_000_000_000
# A file's time may be so far ahead before it is somebody's wrong clock, and says nothing.
_AHEAD_SECONDS = 600.0


class Mark(NamedTuple):
    """A file as one look showed it: bytes, nanoseconds since 1970, a store's own mark of it."""

    size: int
    mtime_ns: int
    etag: str | None = None


Look = Mapping[str, Mark]


def look(source: str, pattern: str = "*") -> dict[str, Mark]:
    """Return the files below a folder or URL that a run over it would have as inputs, by name.

    There may be none. Raises ManifestError where it cannot be read, or a run would refuse it.
    """
    if is_url(source):
        # With a slash at its end, it is not asked for as a file.
        source = f"{source.rstrip('/')}/"
    elif not os.path.isdir(source):
        raise ManifestError(source, ["no such folder. Check the path, and whether it is mounted."])
    return _marks(load_manifest(source, pattern=pattern, may_be_empty=True).inputs)


def recorded(ledger: Ledger) -> dict[str, Mark]:
    """Return what a dataset's ledger knows, ok or not, with any step. Raises LedgerError."""
    return _marks(ledger.records(("input", *_COLUMNS)))


def _marks(table: pa.Table) -> dict[str, Mark]:
    rows = zip(*(table[name].to_pylist() for name in _COLUMNS), strict=True)
    return dict(zip(table["input"].to_pylist(), map(Mark._make, rows), strict=True))


def not_known(seen: Look, known: Look) -> dict[str, Mark]:
    """Return what is new or changed.

    >>> known = {"a": Mark(1, 5), "b": Mark(1, 5)}
    >>> sorted(not_known({"a": Mark(1, 5), "b": Mark(2, 5), "c": Mark(3, 5)}, known))
    ['b', 'c']
    """
    return {name: mark for name, mark in seen.items() if not _is_same(mark, known.get(name))}


def _is_same(mark: Mark, known: Mark | None) -> bool:
    """Tell whether a file is the one that is known; an ETag that is missing says nothing."""
    if known is None or mark[:2] != known[:2]:
        return False
    return mark.etag is None or known.etag is None or mark.etag == known.etag


def age(mark: Mark, wall: float) -> float:
    """Return how many seconds before `wall` a file was last written to, by its own time."""
    return wall - mark.mtime_ns / _NANOSECONDS


def settled(seen: Look, settle_seconds: float, wall: float) -> dict[str, Mark]:
    """Return the files that have settled, as far as one look at `wall` can tell: by their times."""
    return {
        name: mark
        for name, mark in seen.items()
        if age(mark, wall) >= settle_seconds
        or age(mark, wall) <= -max(_AHEAD_SECONDS, settle_seconds)
    }


@dataclass(kw_only=True)
class _Waiting:
    """A file that is not announced: as it is, and since when it is so, or is settled."""

    mark: Mark
    since: float
    settled: float | None = None


class Arrivals:
    """Is told what looks at a source show, and decides what is to be announced.

    A file has settled when it has been seen unchanged for `settle_seconds`; or, if it is `local`,
    when its time was so long ago already as it was first seen. `known` needs no announcement, as
    long as it stays: what vanishes is announced again when it is back, and has settled.
    """

    def __init__(self, settle_seconds: float, *, local: bool, known: Look | None = None) -> None:
        self._settle = settle_seconds
        self._local = local
        self._announced: dict[str, Mark] = dict(known or {})
        # The run that it was announced for may have missed it: when it is back, it is new. But not
        # at once: a listing that has it now and then would have it announced all the time.
        self._vanished: set[str] = set()
        self._waiting: dict[str, _Waiting] = {}

    @property
    def waiting(self) -> int:
        """How many files are not announced."""
        return len(self._waiting)

    def see(self, seen: Look, now: float, wall: float) -> None:
        """Take in what a look showed, at `now` of a steady clock, at `wall` of time.time()."""
        for gone in self._waiting.keys() - seen.keys():
            del self._waiting[gone]
        for gone in self._announced.keys() - seen.keys():
            del self._announced[gone]
            self._vanished.add(gone)
        for name, mark in seen.items():
            waiting = self._waiting.get(name)
            if waiting and waiting.mark == mark:
                if waiting.settled is None and self._has_settled(waiting, now, wall):
                    waiting.settled = now
            elif _is_same(mark, self._announced.get(name)):
                self._waiting.pop(name, None)
            else:
                is_first = waiting is None and name not in self._vanished
                is_old_news = self._local and is_first and age(mark, wall) >= self._settle
                settled = now if is_old_news or not self._settle else None
                self._waiting[name] = _Waiting(mark=mark, since=now, settled=settled)

    def _has_settled(self, waiting: _Waiting, now: float, wall: float) -> bool:
        if now - waiting.since < self._settle:
            return False
        # The run judges by a file's time alone, which may be of a clock that is ahead.
        return not (
            self._local
            and -max(_AHEAD_SECONDS, self._settle) < age(waiting.mark, wall) < self._settle
        )

    def due(self, now: float) -> dict[str, Mark]:
        """Return what is to be announced now, all in one; most of the time, nothing.

        That is what has settled, as soon as nothing else is on its way, or the first of it has
        waited for another `settle_seconds`: a file that grows for ever holds up no other.
        """
        settled = {name: w for name, w in self._waiting.items() if w.settled is not None}
        first = min((w.settled for w in settled.values() if w.settled is not None), default=now)
        if len(settled) < len(self._waiting) and now - first < self._settle:
            return {}
        return {name: w.mark for name, w in settled.items()}

    def announced(self, batch: Look) -> None:
        """Take note that these are announced; until then, they stay due."""
        self._announced.update(batch)
        self._vanished -= batch.keys()
        for name, mark in batch.items():
            waiting = self._waiting.get(name)
            if waiting and waiting.mark == mark:
                del self._waiting[name]
