"""Read CSV and TSV manifests with pandas.

A file that pandas cannot read, or would read with silent corrections, is read a second time record
by record, to find the line of each fault.
"""

import codecs
import csv
import io
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from decimal import Decimal
from functools import cache

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

from batchmill.core.manifest.source import Source, duplicate_column_faults
from batchmill.core.storage.large_tables import collected
from batchmill.core.urls import parent
from batchmill.errors import ManifestError

_UTF_8_MARK = b"\xef\xbb\xbf"
_DECODED_BYTES = 2**20
_UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")
# The csv module rejects fields of more than 128 KiB by default.
csv.field_size_limit(2**31 - 1)

_BLANK = re.compile(rb"\s*")
_BLANK_LINE = re.compile(rb"^[ \t\v\f]+\r?$", re.MULTILINE)

# Only numbers that a numeric column can hold without loss. 007, +49 and account numbers are
# identifiers, so they stay text.
_INTEGER = r"0|-?[1-9]\d{0,17}"
_NUMBER = r"-?(?:0|[1-9]\d{0,14})(?:\.\d{1,17})?(?:[eE][-+]?\d{1,2})?"


def read_delimited(place: str, data: bytes, separator: str) -> Source:
    """Read the content of a CSV or TSV file.

    Args:
        place: The file's path or URL.
        data: Its content.
        separator: The character between two fields.

    Returns:
        The rows. Every cell is text. An empty cell is missing.

    Raises:
        ManifestError: The text is UTF-16.
    """
    data, faults = checked_text(place, data)
    separator = _separator(data, separator)
    frame: pd.DataFrame | None = pd.DataFrame()
    if _BLANK.fullmatch(data):
        faults = faults or ["is empty. Add a header and one line per input."]
    else:
        frame = None if faults else _read_fast(data, separator)
    places: list[str] | None = None
    if frame is None:
        frame, places = _read_by_record(data, separator, faults)
    return Source(
        name=place,
        frame=frame,
        folder=parent(place),
        form="text",
        locate=lambda: _places_of(data, separator) if places is None else places,
        faults=faults,
    )


def type_columns(frame: pd.DataFrame, leave: Collection[str]) -> pd.DataFrame:
    """Convert text columns to whole numbers, numbers or booleans if no value changes.

    Args:
        frame: Columns of text.
        leave: The names of the columns that stay text.

    Returns:
        The same columns, with types of Arrow. A column with numbers that the conversion would
        change, such as `007`, stays text.
    """
    typed = {}
    for name in frame.columns:
        texts = pa.table({"texts": frame[name]})["texts"].cast(pa.string())
        column = texts if name in leave else _typed(texts)
        typed[name] = pd.Series(column, dtype=pd.ArrowDtype(column.type))
    return pd.DataFrame(typed, index=frame.index)


def _typed(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    if texts.null_count == len(texts):
        return texts
    if _all_match(texts, _INTEGER):
        return texts.cast(pa.int64())
    if _all_match(texts, _NUMBER):
        numbers = texts.cast(pa.float64())
        # 1.1 and 1.10 are the same number, but may be two version names.
        if pc.count_distinct(numbers) == pc.count_distinct(texts) and not _loses_digits(texts):
            return numbers
    elif _all_match(texts, "true|false|True|False"):
        return pc.equal(pc.utf8_lower(texts), "true")
    return texts


def _all_match(texts: pa.ChunkedArray, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts, rf"\A(?:{pattern})\z")).as_py())


def _loses_digits(texts: pa.ChunkedArray) -> bool:
    """Return whether a number is not what a float prints with the same number of digits."""
    long = texts.filter(pc.greater(pc.utf8_length(texts), sys.float_info.dig))
    return not all(text == repr(float(text)) or _is_printed(text) for text in long.to_pylist())


def _is_printed(text: str) -> bool:
    exact = Decimal(text)
    return Decimal(f"{float(text):.{len(exact.as_tuple().digits) - 1}e}") == exact


def _separator(data: bytes, separator: str) -> str:
    """Return the separator of the header. Excel writes semicolons in many countries."""
    header = next(filter(bytes.strip, io.BytesIO(data)), b"").decode("utf-8", "replace")
    if separator == "," and "," not in header:
        return next((sign for sign in ";\t" if sign in header), separator)
    return separator


def checked_text(place: str, data: bytes) -> tuple[bytes, list[str]]:
    """Check that the content of a text file is UTF-8.

    Args:
        place: The file's path or URL.
        data: Its content.

    Returns:
        The content without the mark that Excel writes, and a fault for each invalid line.

    Raises:
        ManifestError: The text is UTF-16.
    """
    if data.startswith(_UTF_16_MARKS):
        # Every second byte is NUL, so each line would be a fault.
        raise ManifestError(place, ["is UTF-16. Save the file as UTF-8."])
    data = data.removeprefix(_UTF_8_MARK)
    faults: list[str] = []
    if b"\0" not in data and _is_utf_8(data):
        return data, faults
    for number, line in enumerate(data.split(b"\n"), 1):
        if b"\0" in line:
            faults.append(f"line {number}: holds a NUL byte. Remove it.")
        try:
            line.decode()
        except UnicodeDecodeError as error:
            faults.append(
                f"line {number}: is not UTF-8 (byte 0x{line[error.start]:02x} at position "
                f"{error.start + 1}). Save the file as UTF-8."
            )
    return data, faults


def _is_utf_8(data: bytes) -> bool:
    """Return whether data is UTF-8. Some of it is decoded at a time, because text takes memory."""
    starts = range(0, len(data), _DECODED_BYTES)
    parts = (data[start : start + _DECODED_BYTES] for start in starts)
    try:
        for _ in codecs.iterdecode(parts, "utf-8"):
            pass
    except UnicodeDecodeError:
        return False
    return True


def _read_fast(data: bytes, separator: str) -> pd.DataFrame | None:
    """Read with Arrow. Returns None if the file has to be read record by record."""
    # Arrow differs from the csv module in blank lines, lone carriage returns, and quotes that do
    # not enclose a whole field.
    if _BLANK_LINE.search(data):
        return None
    if b"\r" in data and b"\r" in data.replace(b"\r\n", b""):
        return None
    is_quoted = b'"' in data
    if is_quoted and not _whole_fields(separator).fullmatch(data):
        return None
    _, header = next(_records(data, separator), ("", []))
    # In a table with one column, "" is a blank line.
    if len(set(header)) < len(header) or len(header) < 1 + is_quoted:
        return None
    schema = pa.schema([(name, pa.string()) for name in header])
    try:
        batches = pcsv.open_csv(
            pa.BufferReader(data),
            parse_options=pcsv.ParseOptions(
                delimiter=separator,
                quote_char='"' if is_quoted else False,
                newlines_in_values=is_quoted,
            ),
            convert_options=pcsv.ConvertOptions(
                column_types=schema,
                null_values=[""],  # "NA" and "None" are valid labels.
                strings_can_be_null=True,
            ),
        )
        table = collected((pa.Table.from_batches([batch]) for batch in batches), schema)
    except pa.ArrowInvalid:  # A record has too few or too many fields.
        return None
    frame: pd.DataFrame = table.to_pandas(types_mapper=pd.ArrowDtype)
    return frame


@cache
def _whole_fields(separator: str) -> re.Pattern[bytes]:
    """Return a pattern of tables whose quotes enclose whole fields. It keeps no positions."""
    sign = re.escape(separator.encode())
    field = rb'(?:"(?:[^"]|"")*+"|[^"\r\n%b]*+)' % sign
    return re.compile(rb"(?:%b(?:%b|\r?\n|\Z))*+" % (field, sign))


def _places_of(data: bytes, separator: str) -> list[str]:
    return [line for line, _ in _records(data, separator)][1:]


def _read_by_record(
    data: bytes, separator: str, faults: list[str]
) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows and their places. Add a fault for a record with too few or many fields."""
    places: list[str] = []
    rows: list[Sequence[str | None]] = []
    header: list[str] | None = None
    try:
        for line, record in _records(data, separator):
            if header is None:
                header = record
                faults += duplicate_column_faults(header, line)
            elif len(record) != len(header):
                faults.append(
                    f"{line}: has {len(record)} fields, the header has {len(header)}. "
                    "Quote fields that contain the separator, or add the missing fields."
                )
            else:
                places.append(line)
                rows.append([value or None for value in record])
    except csv.Error as error:
        faults.append(
            f"cannot be read as a table ({error}) after {places[-1] if places else 'line 1'}. "
            'Close the quotes there. Write a quote inside quotes as "".'
        )
    frame = pd.DataFrame(rows, columns=header, dtype="str")
    return frame.loc[:, ~frame.columns.duplicated()], places


def _records(data: bytes, separator: str) -> Iterator[tuple[str, list[str]]]:
    """Yield (place, fields) of each record. A record's place is its first line."""
    text = data.decode("utf-8", "replace")
    # Without `strict`, a missing closing quote would turn the rest of the file into one field.
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    before = 0
    for record in reader:
        if len(record) > 1 or (record and record[0].strip()):
            yield f"line {before + 1}", record
        before = reader.line_num
