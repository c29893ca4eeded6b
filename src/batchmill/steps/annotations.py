r"""What is heard when in a recording: tables of Raven and Audacity, and CSV.

A Raven selection table has tabs between its columns, `Begin Time (s)` and `End Time (s)` among
them; an Audacity label file has no header, and tabs between start, end and label; a CSV has a
header with `start`, `end` and `label`. Times are seconds from the recording's beginning.

>>> [*parse_annotations("1.5\t2.5\twren\n\\\t800\t950\n", "a.txt")]
[Annotation(start=1.5, end=2.5, label='wren', file='')]

Sources: Raven Pro user's guide, "Selection tables"; Audacity manual, "Importing and exporting
labels".
"""

import csv
import io
import math
import os
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import NamedTuple

SUFFIXES = (".txt", ".csv", ".tsv")

_START = ("begin time (s)", "start", "start_time", "start (s)", "onset")
_END = ("end time (s)", "end", "end_time", "end (s)", "offset")
_LABEL = ("annotation", "label", "species", "species code", "common name", "class", "tag")
_FILE = ("begin file", "file", "filename", "file_name", "recording", "source")
# Of a table of several recordings, Raven's begin times go on from one to the next.
_FILE_OFFSET = "file offset (s)"


class AnnotationError(ValueError):
    """A table of annotations cannot be used; says which, at which line, and what to do."""


class Annotation(NamedTuple):
    """From `start` to `end` (seconds) `label` is heard; `file` is the recording, "" if not said."""

    start: float
    end: float
    label: str
    file: str = ""


class Labels:
    """The annotations of one recording, to be asked for the labels of its parts."""

    def __init__(self, annotations: Sequence[Annotation]) -> None:
        self._sorted = sorted(annotations)
        self._starts = [each.start for each in self._sorted]
        self._longest = max((each.end - each.start for each in self._sorted), default=0.0)

    def within(self, start: float, end: float, min_overlap_seconds: float = 0.0) -> list[str]:
        """Return the labels of which more than that lies in `start` up to, not with, `end`.

        >>> Labels([Annotation(0, 2, "wren"), Annotation(2, 2, "click")]).within(2, 4)
        ['click']
        """
        first = bisect_left(self._starts, start - self._longest)
        last = bisect_left(self._starts, end)
        found = set()
        for each in self._sorted[first:last]:
            overlap = min(each.end, end) - max(each.start, start)
            # A point has no length: it lies in the part or does not.
            is_point = each.start == each.end and each.start >= start and not min_overlap_seconds
            if overlap > min_overlap_seconds or is_point:
                found.add(each.label)
        return sorted(found)


def annotations_of(
    source: Path, place: str | None, *, label_column: str | None = None
) -> Labels | None:
    """Return the labels of a recording; `place` is a table of all, or a folder with one for each.

    In a folder, the tables of `site/x.wav` are `x.csv`, `x.txt`, `x.tsv` and Raven's
    `x.Table.1.selections.txt` (any `x.*.selections.txt`), in the subfolder `site` or in the folder
    itself; a recording without a table has no labels. None if `place` is. Raises AnnotationError.
    """
    if place is None:
        return None
    if not os.path.isdir(place):
        return Labels(
            _listed_for(source, _read(Path(place), label_column), place, one_for_all=True)
        )
    found = [
        annotation
        for table in _tables_of(source, Path(place))
        for annotation in _listed_for(source, _read(table, label_column), str(table))
    ]
    return Labels(found)


def label_columns(labels: list[str]) -> dict[str, object]:
    """Return what a row says of its labels: all of them, and the one if there is one."""
    # None, not left out: a column `label` of the manifest would show through.
    return {"labels": labels, "label": labels[0] if len(labels) == 1 else None}


def parse_annotations(text: str, name: str, *, label_column: str | None = None) -> list[Annotation]:
    """Read a table of one of the three forms; `name` is what errors call it.

    Rows without a label are left out, and a selection that Raven lists once for each view counts
    once. Raises AnnotationError.
    """
    lines = [line.rstrip("\n") for line in io.StringIO(text.removeprefix("\ufeff"), newline=None)]
    first = next((line for line in lines if line.strip(" \t,")), "")
    if not first:
        return []
    if _is_audacity(first):
        return [each for _, each in _audacity(lines, name)]
    try:
        return _with_header(lines, name, label_column, separator="\t" if "\t" in first else ",")
    except csv.Error as error:
        raise AnnotationError(f"{name}: is no table ({error}). Save it as CSV.") from error


def _is_audacity(first: str) -> bool:
    fields = first.split("\t")
    try:
        return len(fields) >= 2 and bool([float(field) for field in fields[:2]])
    except ValueError:
        return False


def _audacity(lines: Sequence[str], name: str) -> Iterator[tuple[int, Annotation]]:
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("\\"):  # A range of frequencies, of the line above.
            continue
        start, end, label = [*line.split("\t", 2), "", ""][:3]
        if label.strip():
            yield number, _annotation(start, end, label, "", f"{name}, line {number}")


def _with_header(
    lines: Sequence[str], name: str, label_column: str | None, separator: str
) -> list[Annotation]:
    # Raven does not quote: a quotation mark in a label is one.
    quote = None if separator == "\t" else '"'
    reader = csv.reader(lines, delimiter=separator, quotechar=quote, strict=True)
    rows = ((reader.line_num, row) for row in reader if any(field.strip() for field in row))
    _, header = next(rows)
    columns = [field.strip().lower() for field in header]

    def find(what: str, names: Sequence[str], remedy: str) -> int:
        for each in names:
            if each in columns:
                return columns.index(each)
        found = ", ".join(repr(field.strip()) for field in header)
        raise AnnotationError(
            f"{name}, line 1: no column with the {what} (found: {found}). {remedy}"
        )

    starts = find("start", _START, f"Call it {_START[1]!r}.")
    ends = find("end", _END, f"Call it {_END[1]!r}.")
    wanted = (label_column.strip().lower(),) if label_column else _LABEL
    labels = find("label", wanted, "Name yours with label_column.")
    files = next((columns.index(each) for each in _FILE if each in columns), None)
    offsets = columns.index(_FILE_OFFSET) if _FILE_OFFSET in columns and files is not None else None
    found = []
    for number, row in rows:
        where = f"{name}, line {number}"
        if len(row) > len(columns):
            raise AnnotationError(f"{where}: has {len(row)} fields, its header {len(columns)}.")
        row += [""] * (len(columns) - len(row))
        if not row[labels].strip():
            continue
        file = row[files].strip() if files is not None else ""
        annotation = _annotation(row[starts], row[ends], row[labels], file, where)
        if offsets is not None and row[offsets].strip():
            start = _seconds(row[offsets], where)
            end = start + annotation.end - annotation.start
            annotation = annotation._replace(start=start, end=end)
        found.append((_selection(columns, row), annotation))
    return [annotation for _, annotation in dict.fromkeys(found)]


def _selection(columns: Sequence[str], row: Sequence[str]) -> str:
    """Return a Raven selection's number; of other rows, nothing is listed twice but what is so."""
    return row[columns.index("selection")] if "selection" in columns else ""


def _annotation(start: str, end: str, label: str, file: str, where: str) -> Annotation:
    made = Annotation(_seconds(start, where), _seconds(end, where), label.strip(), file)
    if made.end < made.start:
        raise AnnotationError(f"{where}: ends ({end} s) before it starts ({start} s). Mend it.")
    return made


def _seconds(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise AnnotationError(f"{where}: {text!r} is no number of seconds. Write it as 12.5.")
    return value


@dataclass(frozen=True)
class _Table:
    """What a table lists, and the same by the names of the recordings that it is about."""

    listed: Sequence[Annotation]

    @cached_property
    def by_name(self) -> Mapping[str, Sequence[Annotation]]:
        by_name: dict[str, list[Annotation]] = {}
        for each in self.listed:
            path = _path(each.file)
            for name in {path.name, path.stem}:
                by_name.setdefault(name, []).append(each)
        return by_name


def _read(table: Path, label_column: str | None) -> _Table:
    try:
        seen = table.stat()
        return _parsed(table, label_column, seen.st_size, seen.st_mtime_ns)
    except UnicodeDecodeError as error:
        raise AnnotationError(f"{table}: is not UTF-8 ({error}). Save it as UTF-8.") from error
    except OSError as error:
        raise AnnotationError(f"{table}: {error.strerror}. Check the path.") from error


@lru_cache(maxsize=4)  # One table for all recordings is read once a process.
def _parsed(table: Path, label_column: str | None, *_seen: int) -> _Table:
    text = table.read_text(encoding="utf-8")
    return _Table(parse_annotations(text, str(table), label_column=label_column))


def _tables_of(source: Path, folder: Path) -> list[Path]:
    """Return the tables of a recording: those in the subfolder that is most like its own."""
    parents = source.absolute().parent.parts[1:]
    for start in range(len(parents) + 1):
        place = folder.joinpath(*parents[start:])
        tables = [place / f"{source.stem}{suffix}" for suffix in SUFFIXES]
        tables = [table for table in tables if table.is_file() and table != source]
        if place.is_dir():
            tables += sorted(
                each
                for each in place.iterdir()
                if each.name.startswith(f"{source.stem}.") and each.name.endswith(".selections.txt")
            )
        if tables:
            return tables
    return []


def _listed_for(
    source: Path, table: "_Table", place: str, *, one_for_all: bool = False
) -> list[Annotation]:
    """Return those annotations of a table that are a recording's.

    A table with a column that names the recording may have those of others, too.
    """
    listed = table.listed
    if not any(each.file for each in listed):
        if one_for_all and listed:
            raise AnnotationError(
                f"{place}: has no column that names the recording, and is for all of them. "
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
    """Tell whether a table's entry means a recording: `x.wav`, `x`, `site/x.wav` do `site/x.wav`.

    Of another format, too: what was annotated as WAV may have become FLAC since. Of an absolute
    path, which may be another machine's, the last folder and the name count.
    """
    path = _path(file)
    if source.stem not in (path.name, path.stem):
        return False
    folders = path.parent.parts[-1:] if path.is_absolute() else path.parent.parts
    if path.is_absolute() and len(path.parts) <= 2:
        folders = ()
    return not folders or source.absolute().parent.parts[-len(folders) :] == folders
