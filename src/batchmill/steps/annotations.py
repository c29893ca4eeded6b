"""Find the annotations of a recording, and the labels of its parts.

For the forms of tables, see `batchmill.steps.annotation_tables`.
"""

import os
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import NamedTuple

from batchmill.steps.annotation_tables import Annotation, AnnotationError, parse_annotations

SUFFIXES = (".txt", ".csv", ".tsv")
# The end of the name of Raven's table for `x.wav`, such as `x.Table.1.selections.txt`.
# `x.part2.Table.1.selections.txt` is the table of another recording, `x.part2.wav`.
_SELECTIONS = re.compile(r"(\.[^.]+(\.\d+)?)?\.selections\.txt")


class Labels:
    """The annotations of one recording."""

    def __init__(self, annotations: Sequence[Annotation]) -> None:
        self._sorted = sorted(annotations)
        self._starts = [each.start for each in self._sorted]
        self._longest = max((each.end - each.start for each in self._sorted), default=0.0)

    def within(self, start: float, end: float, min_overlap_seconds: float = 0.0) -> list[str]:
        """Return the labels of a part of the recording.

        Args:
            start: The start of the part in seconds.
            end: Its end in seconds, which is not part of it.
            min_overlap_seconds: A label counts if more than this overlaps with the part.

        Returns:
            The labels, sorted.

        >>> Labels([Annotation(0, 2, "wren"), Annotation(2, 2, "click")]).within(2, 4)
        ['click']
        """
        first = bisect_left(self._starts, start - self._longest)
        last = bisect_left(self._starts, end)
        found = set()
        for each in self._sorted[first:last]:
            overlap = min(each.end, end) - max(each.start, start)
            # An annotation without length cannot overlap. It counts if it lies in the part.
            is_point = each.start == each.end and each.start >= start and not min_overlap_seconds
            if overlap > min_overlap_seconds or is_point:
                found.add(each.label)
        return sorted(found)


def read_labels(
    source: Path, place: str | None, *, label_column: str | None = None
) -> Labels | None:
    """Read the annotations of a recording.

    In a folder, the tables of `site/x.wav` are `x.csv`, `x.txt`, `x.tsv` and Raven's
    `x.Table.1.selections.txt` (or `x.NAME.selections.txt`), in the subfolder `site` or in the
    folder itself. A recording without a table has no labels.

    Args:
        source: The recording.
        place: A table for all recordings, or a folder with tables for each. None: no annotations.
        label_column: The column of labels. Default: the first of the usual names.

    Returns:
        The recording's annotations, or None without a `place`.

    Raises:
        AnnotationError: A table cannot be used.
    """
    if place is None:
        return None
    is_folder = os.path.isdir(place)
    found: list[Annotation] = []
    for table in _tables_of(source, Path(place)) if is_folder else [Path(place)]:
        found += _listed_for(source, table, label_column, one_for_all=not is_folder)
    return Labels(found)


class _Table(NamedTuple):
    """The annotations in a table, also by the names of their recordings."""

    listed: Sequence[Annotation]
    by_name: Mapping[str, Sequence[Annotation]]


def _read(table: Path, label_column: str | None) -> _Table:
    try:
        seen = table.stat()
        return _parsed(table, label_column, seen.st_size, seen.st_mtime_ns)
    except UnicodeDecodeError as error:
        raise AnnotationError(f"{table}: is not UTF-8 ({error}). Save it as UTF-8.") from error
    except OSError as error:
        raise AnnotationError(f"{table}: {error.strerror}. Check the path.") from error


@lru_cache(maxsize=4)  # Each process reads a table for all recordings once.
def _parsed(table: Path, label_column: str | None, *_seen: int) -> _Table:
    text = table.read_text(encoding="utf-8")
    listed = parse_annotations(text, str(table), label_column=label_column)
    by_name: dict[str, list[Annotation]] = {}
    for each in listed:
        path = _path(each.file)
        for name in {path.name, path.stem}:
            by_name.setdefault(name, []).append(each)
    return _Table(listed, by_name)


def _tables_of(source: Path, folder: Path) -> list[Path]:
    """Return a recording's tables, from the subfolder that shares most of its path."""
    parents = source.absolute().parent.parts[1:]
    for start in range(len(parents) + 1):
        place = folder.joinpath(*parents[start:])
        tables = [place / f"{source.stem}{suffix}" for suffix in SUFFIXES]
        tables = [table for table in tables if table.is_file() and table != source]
        if place.is_dir():
            tables += sorted(
                each
                for each in place.iterdir()
                if _SELECTIONS.fullmatch(each.name.removeprefix(source.stem))
                and each.name.startswith(source.stem)
            )
        if tables:
            return tables
    return []


def _listed_for(
    source: Path, place: Path, label_column: str | None, *, one_for_all: bool
) -> list[Annotation]:
    """Return the annotations in a table that belong to a recording.

    A table that names recordings in a column may have annotations of several.
    """
    table = _read(place, label_column)
    listed = table.listed
    if not any(each.file for each in listed):
        if one_for_all and listed:
            raise AnnotationError(
                f"{place}: has no column that names the recording, but applies to all recordings. "
                "Add a column 'file', or give a folder with a table for each recording."
            )
        return list(listed)
    found = [each for each in table.by_name.get(source.stem, ()) if _names(each.file, source)]
    if not found and listed and not one_for_all:
        raise AnnotationError(
            f"{place}: is about {listed[0].file!r}, not about {source.name!r}. Rename one of them."
        )
    return found


def _path(file: str) -> PurePath:
    return PureWindowsPath(file) if "\\" in file else PurePosixPath(file)


def _names(file: str, source: Path) -> bool:
    """Return whether a table's entry names a recording.

    `x.wav`, `x` and `site/x.wav` name `site/x.wav`, and also `site/x.flac`, because a recording may
    be converted after it was annotated. An absolute path may come from another machine, so only its
    last folder and its name are compared.
    """
    path = _path(file)
    if source.stem not in (path.name, path.stem):
        return False
    if path.name != source.stem and path.suffix[1:].isdecimal():
        return False  # `day.1` names `day.1.wav`, and not `day.wav`.
    folders = path.parent.parts[-1:] if path.is_absolute() else path.parent.parts
    if path.is_absolute() and len(path.parts) <= 2:
        folders = ()
    return not folders or source.absolute().parent.parts[-len(folders) :] == folders
