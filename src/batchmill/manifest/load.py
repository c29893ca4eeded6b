"""Load and check a manifest. Its inputs are looked at (`stat`), never opened."""

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from batchmill.allowlist import refused_inputs, restricts_inputs
from batchmill.errors import ManifestError, StoreError
from batchmill.manifest.delimited import read_delimited, type_columns
from batchmill.manifest.groups import faults_of_groups, missing_columns, read_groups
from batchmill.manifest.inputs import check_inputs, is_missing
from batchmill.manifest.listing import is_glob, read_folder, read_glob, read_prefix, read_url_glob
from batchmill.manifest.min_age import check_settle, is_unsettled
from batchmill.manifest.records import flat, read_json_lines, read_parquet
from batchmill.manifest.source import Source, numbered
from batchmill.partitioning import Groups, Partitioning
from batchmill.storage import is_url, remote
from batchmill.storage.urls import (
    is_web,
    join,
    last_part,
    shown_url,
    url_fault,
    without_file_scheme,
)

ManifestLike = str | os.PathLike[str] | Sequence[str] | pd.DataFrame

# The table that a run publishes has these columns itself.
RESERVED_COLUMNS = frozenset({"output"})

_SEPARATORS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
_JSON_LINES = {".jsonl", ".ndjson"}
_PARQUET = {".parquet", ".pq"}


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A checked manifest.

    `inputs` is a table with one row an input, in the manifest's order: `input` (its name:
    relative to `root` where it lies below it, else absolute), `size` (bytes, -1 if there is no such
    file), `mtime_ns`, `etag` (null but of a store that gives one). `carried` has the manifest's
    other columns, row for row. `root` is a folder or a URL. `unsettled` names the files that were
    left out because somebody may be writing them still. `groups` say what belongs together, if
    that was asked for, and `partition` is that of each row, once it is decided.
    """

    name: str
    root: str
    inputs: pa.Table
    carried: pa.Table
    unsettled: pa.Array = field(default_factory=lambda: pa.array([], pa.string()))
    groups: Groups | None = None
    partition: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    def carried_rows(self) -> list[dict[str, Any]]:
        """Return the other columns of each input, as plain values."""
        if not self.carried.num_columns:
            return [{} for _ in range(len(self))]
        rows: list[dict[str, Any]] = self.carried.to_pylist()
        return rows


def load_manifest(
    source: ManifestLike,
    *,
    input_column: str = "input",
    root: str | os.PathLike[str] | None = None,
    pattern: str = "*",
    settle_seconds: float = 0,
    may_be_empty: bool = False,
    partitioning: Partitioning | None = None,
) -> Manifest:
    """Read a manifest and check every row of it.

    `source` is a CSV, TSV, JSON Lines or Parquet file, a folder (searched recursively for
    `pattern`), a glob, all these also by URL, a list of paths and URLs or a DataFrame. Relative
    inputs are relative to `root`, by default the manifest's folder (the working directory, for a
    list or DataFrame). Of a folder or glob of this machine, files whose time is less than
    `settle_seconds` away from now are left out. A listing `may_be_empty`. For a `partitioning`, its
    columns must be there, and no group be torn up by what the manifest itself names.

    Raises ManifestError with all faults at once, each with its line.
    """
    check_settle(settle_seconds)
    table = _read(source, pattern, may_be_empty=may_be_empty)
    column = "input" if table.form in ("listing", "dataset") else input_column
    frame = table.frame
    is_empty_listing = table.form == "listing" and frame.empty and may_be_empty
    faults = [] if is_empty_listing else list(table.faults)
    if column not in frame.columns and not (faults and frame.empty):
        found = ", ".join(repr(str(name)) for name in frame.columns) or "none"
        remedy = "Rename the column, or name yours with --input-column."
        if len(frame.columns) == 1 and any(sign in found for sign in ";\t|"):
            remedy = "Separate the fields with commas (.csv) or tabs (.tsv)."
        faults.append(f"line 1: no column {column!r} (found: {found}). {remedy}")
    if column not in frame.columns:
        raise ManifestError(table.name, faults)
    if frame.empty and not faults and not is_empty_listing:
        faults.append("has a header, but no inputs. Add one line an input.")
    reserved = (RESERVED_COLUMNS | ({"input"} - {column})) & set(frame.columns)
    faults += [
        f"line 1: the column {name!r} would hide the one that batchmill writes. Rename it."
        for name in sorted(reserved)
    ]
    as_read = frame
    if partitioning:
        faults += missing_columns(frame, partitioning)
    if table.form == "text":
        # A file of text has no types: those of its columns are read off their values.
        frame = type_columns(frame, leave=column)

    confined = root is not None
    base = table.folder
    if root is not None:
        base = without_file_scheme(os.fspath(root))
        base = base.rstrip("/") if is_url(base) else os.path.abspath(base)
        if is_url(base) and url_fault(base):
            raise ManifestError(table.name, [f"--root {shown_url(base)}: {url_fault(base)}"])
        if not is_url(base) and not os.path.isdir(base):
            faults.append(f"--root {root}: no such folder. Give the folder that its inputs are in.")
        elif table.form in ("listing", "dataset") and base != table.folder:
            faults.append(
                f"--root {root}: is for tables of inputs; what {table.folder} lists lies in it. "
                "Drop --root."
            )
    checked = check_inputs(table, column, base, confined=confined)
    faults += checked.faults
    if restricts_inputs() and not faults:
        places = [join(base, name) for name in checked.table["input"].to_pylist()]
        refused = refused_inputs(places)
        faults += [f"{table.places[number]}: {why}" for number, why in refused.items()]
    groups = None
    if partitioning and not faults:
        # As they were read: a column's type, and so its numbers' text, may change with its rows.
        groups = read_groups(as_read, checked.table["input"], partitioning)
        faults = faults_of_groups(groups, partitioning, lambda: table.places)
    if faults:
        raise ManifestError(table.name, sorted(faults, key=_line_of))
    inputs = checked.table
    unsettled = pa.array([], pa.string())
    # Objects in a bucket are whole when they appear; and what somebody has listed, is to be taken.
    if settle_seconds and table.form == "listing" and not is_url(table.folder):
        near = is_unsettled(inputs, settle_seconds)
        unsettled = inputs["input"].filter(near).combine_chunks()
        inputs = inputs.filter(pc.invert(near))
        groups = groups and groups.only(pc.invert(near))
        if len(unsettled) and not len(inputs) and not may_be_empty:
            raise ManifestError(table.name, [_all_unsettled(len(unsettled), settle_seconds)])
    return Manifest(
        name=table.name,
        root=base,
        inputs=inputs,
        carried=_carried(frame.drop(columns=column)),
        unsettled=unsettled,
        groups=groups,
    )


def _all_unsettled(count: int, settle_seconds: float) -> str:
    left_out = "1 file was" if count == 1 else f"{count:,} files were"
    return (
        f"no input in it: {left_out} left out, younger than --settle {settle_seconds:g} (seconds). "
        "Wait, or give a smaller one."
    )


def _line_of(fault: str) -> int:
    number = re.match(r"(?:line|row|file) (\d+):", fault)
    return int(number[1]) if number else 0


def _read(source: ManifestLike, pattern: str, *, may_be_empty: bool) -> Source:
    if isinstance(source, pd.DataFrame):
        frame = flat(source).rename(columns=str)
        twice = sorted(set(frame.columns[frame.columns.duplicated()]))
        if twice:
            faults = [f"column {name!r} stands there twice. Rename one." for name in twice]
            raise ManifestError("the DataFrame", faults)
        return _in_memory("the DataFrame", frame)
    if not isinstance(source, str | os.PathLike):
        items = [os.fspath(item) if isinstance(item, Path) else item for item in source]
        return _in_memory("the list", pd.DataFrame({"input": pd.Series(items, dtype=object)}))
    text = os.fspath(source)
    if not text:
        raise ManifestError("manifest", ["has no name. Name a file, a folder or a glob."])
    text = without_file_scheme(text)
    refused = refused_inputs([text])
    if refused:
        raise ManifestError(text, list(refused.values()))
    if is_url(text):
        return _read_url(text, pattern, may_be_empty=may_be_empty)
    path = Path(text)
    try:
        if path.is_dir():
            return read_folder(path, pattern)
        if path.is_file():
            return _read_file(str(path), path.read_bytes)
        if path.exists():
            raise ManifestError(text, ["is no regular file. Name a file or a folder."])
    except OSError as error:
        raise ManifestError(
            # It may be a folder far below.
            str(error.filename or text),
            [f"cannot be read: {error.strerror}. Check the path and its permissions."],
        ) from error
    if is_glob(text):
        return read_glob(text)
    looked = "" if path.is_absolute() else f" (looked in {os.getcwd()})"
    raise ManifestError(text, [f"no such file or folder{looked}. Check the path."])


def _read_url(url: str, pattern: str, *, may_be_empty: bool) -> Source:
    try:
        remote.check_url(url)
        if not url.endswith("/") and remote.look(url):
            return _read_file(url, lambda: remote.read(url))
        if is_web(url):
            if restricts_inputs():
                remote.read(url)  # To a look, a redirect that is refused is no file.
            raise ManifestError(url, ["no such file. Of a web server, no folder can be listed."])
        remote.check_bucket(url)
        if is_glob(url) and not remote.is_folder(url):
            return read_url_glob(url)
        if not may_be_empty and not remote.is_folder(url):
            raise ManifestError(url, ["no such file, and none below it. Check the URL."])
        return read_prefix(url, pattern)
    except StoreError as error:
        raise ManifestError(error.path, [error.reason]) from error


def _read_file(place: str, read: Callable[[], bytes]) -> Source:
    suffix = os.path.splitext(last_part(place))[1].lower()
    if suffix in _SEPARATORS:
        return read_delimited(place, read(), _SEPARATORS[suffix])
    if suffix in _JSON_LINES:
        return read_json_lines(place, read())
    if suffix in _PARQUET:
        return read_parquet(place, pa.BufferReader(read()))
    known = ", ".join(sorted([*_SEPARATORS, *_JSON_LINES, *_PARQUET]))
    raise ManifestError(
        place,
        [f"of what form is it? Its name ends in none of {known}. Rename it, or give a folder."],
    )


def _in_memory(name: str, frame: pd.DataFrame) -> Source:
    return Source(
        name=name,
        form="typed",
        frame=frame,
        folder=os.getcwd(),
        locate=numbered("row", len(frame), first=0),
        faults=[] if len(frame) else ["is empty. Give at least one input."],
    )


def _carried(frame: pd.DataFrame) -> pa.Table:
    """Turn the other columns into Arrow; lists become JSON text, what has no common type text."""
    return pa.table({str(name): _arrow_column(frame[name]) for name in frame.columns})


def _arrow_column(values: pd.Series) -> pa.Array:
    try:
        column = pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return _text_column(values.tolist())
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_null(kind) or pa.types.is_primitive(kind):
        return column
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return column.cast(pa.string())
    if pa.types.is_decimal(kind):
        return column
    return _text_column(column.to_pylist())


def _text_column(values: list[Any]) -> pa.Array:
    return pa.array(
        [None if is_missing(value) else _as_text(value) for value in values], pa.string()
    )


def _as_text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, dict | list):
        value = json.dumps(value, default=str, ensure_ascii=False)
    return str(value).encode("utf-8", "replace").decode()
