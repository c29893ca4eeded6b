r"""Parse tables of annotations: Raven, Audacity and CSV.

A Raven selection table is separated by tabs and has the columns `Begin Time (s)` and
`End Time (s)`. An Audacity label file has no header, and tabs between start, end and label. A CSV
has a header with `start`, `end` and `label`. Times are seconds from the start of the recording.

>>> [*parse_annotations("1.5\t2.5\twren\n\\\t800\t950\n", "a.txt")]
[Annotation(start=1.5, end=2.5, label='wren', file='')]

Sources: Raven Pro user's guide, "Selection tables"; Audacity manual, "Importing and exporting
labels".
"""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_START = ("begin time (s)", "start", "start_time", "start (s)", "onset")
_END = ("end time (s)", "end", "end_time", "end (s)", "offset")
_LABEL = ("annotation", "label", "species", "species code", "common name", "class", "tag")
_FILE = ("begin file", "file", "filename", "file_name", "recording", "source")
# In a Raven table of several recordings, begin times count from the start of the first recording.
# This column counts from the start of each.
_FILE_OFFSET = "file offset (s)"


class AnnotationError(ValueError):
    """A table of annotations cannot be used."""


class Annotation(NamedTuple):
    """A labelled part of a recording.

    Attributes:
        start: Its start in seconds.
        end: Its end in seconds.
        label: Its label, such as a species.
        file: The recording that the table names. Empty if it names none.
    """

    start: float
    end: float
    label: str
    file: str = ""


def parse_annotations(text: str, name: str, *, label_column: str | None = None) -> list[Annotation]:
    """Read a table of one of the three forms.

    Args:
        text: The content of the table.
        name: The name of the table, for messages.
        label_column: The column of labels. Default: the first of the usual names.

    Returns:
        The annotations. Rows without a label are left out. A selection that Raven lists once per
        view counts once.

    Raises:
        AnnotationError: The table cannot be used.
    """
    lines = [line.rstrip("\n") for line in io.StringIO(text.removeprefix("\ufeff"), newline=None)]
    first = next((line for line in lines if line.strip(" \t,")), "")
    if not first:
        return []
    if _is_audacity(first):
        return list(_audacity(lines, name))
    try:
        return _with_header(lines, name, label_column, separator="\t" if "\t" in first else ",")
    except csv.Error as error:
        raise AnnotationError(f"{name}: is not a table ({error}). Save it as CSV.") from error


def _is_audacity(first: str) -> bool:
    fields = first.split("\t")
    try:
        return len(fields) >= 2 and bool([float(field) for field in fields[:2]])
    except ValueError:
        return False


def _audacity(lines: Sequence[str], name: str) -> Iterator[Annotation]:
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("\\"):
            continue  # A backslash starts the frequency range of the line above.
        start, end, label = [*line.split("\t", 2), "", ""][:3]
        if label.strip():
            yield _annotation(start, end, label, "", f"{name}, line {number}")


def _with_header(
    lines: Sequence[str], name: str, label_column: str | None, separator: str
) -> list[Annotation]:
    # Raven does not quote fields: a quotation mark is part of the label.
    quote = None if separator == "\t" else '"'
    reader = csv.reader(lines, delimiter=separator, quotechar=quote, strict=True)
    rows = ((reader.line_num, row) for row in reader if any(field.strip() for field in row))
    _, header = next(rows)
    columns = [field.strip().lower() for field in header]
    wanted = (label_column.strip().lower(),) if label_column else _LABEL
    starts = _find_column(header, "start", _START, name, f"Call it {_START[1]!r}.")
    ends = _find_column(header, "end", _END, name, f"Call it {_END[1]!r}.")
    labels = _find_column(header, "label", wanted, name, "Name yours with label_column.")
    files = next((columns.index(each) for each in _FILE if each in columns), None)
    offsets = columns.index(_FILE_OFFSET) if _FILE_OFFSET in columns and files is not None else None
    # A selection that Raven lists once per view has the same number in each.
    selection = columns.index("selection") if "selection" in columns else None
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
        found.append((row[selection] if selection is not None else "", annotation))
    return [annotation for _, annotation in dict.fromkeys(found)]


def _find_column(
    header: Sequence[str], what: str, names: Sequence[str], table: str, remedy: str
) -> int:
    """Return the index of the first column with one of these names."""
    columns = [field.strip().lower() for field in header]
    for each in names:
        if each in columns:
            return columns.index(each)
    found = ", ".join(repr(field.strip()) for field in header)
    raise AnnotationError(f"{table}, line 1: no column with the {what} (found: {found}). {remedy}")


def _annotation(start: str, end: str, label: str, file: str, where: str) -> Annotation:
    made = Annotation(_seconds(start, where), _seconds(end, where), label.strip(), file)
    if made.end < made.start:
        raise AnnotationError(
            f"{where}: ends ({end} s) before it starts ({start} s). Correct the times."
        )
    return made


def _seconds(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise AnnotationError(f"{where}: {text!r} is not a number of seconds. Write it like 12.5.")
    return value
