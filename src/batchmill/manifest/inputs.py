"""Check the inputs of a manifest: each is a valid name, listed once, and not a folder.

Whole columns are checked at a time. Only unusual rows are handled in Python one by one, because a
manifest may have millions of rows.
"""

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from batchmill.cells import is_missing
from batchmill.manifest.source import Source
from batchmill.storage import in_threads, is_url, remote
from batchmill.storage.fingerprints import Fingerprint, recordable
from batchmill.storage.folder_files import files_in, folder_state
from batchmill.storage.remote import FileStat
from batchmill.urls import (
    control_fault,
    is_web,
    join,
    shown_url,
    url_fault,
    without_file_scheme,
)

MISSING_SIZE = -1
_NO_FOLDER = Fingerprint(MISSING_SIZE, 0, "")

# The columns of the tables of files.
COLUMNS = ["input", "size", "mtime_ns", "etag", "ctime_ns"]

# Not a plain relative path: absolute, with // or . or .. in it, or not a path at all.
_ODD_PATH = r"^/|/$|//|(^|/)\.\.?(/|$)|\x00|^\s*$"
# Not a plain key below a URL: not a key at all, or ambiguous.
_ODD_KEY = r"^/|^\.{1,2}/|/\.\.(/|$)|/$|[\x00-\x1f\x7f]|^\s*$"
# The number of names that are Python objects at a time. It limits the memory.
_CHUNK = 65_536
# The bits of a file's mode that hold its type.
_FILE_TYPE_BITS = 0o170000


@dataclass(frozen=True, kw_only=True)
class CheckedInputs:
    """The inputs of a manifest, and their faults.

    Attributes:
        table: The same columns as `Manifest.inputs`. Valid only if `faults` is empty.
        faults: One sentence per fault, with its line.
        folders: For inputs that are folders, the digest of the files of each.
    """

    table: pa.Table
    faults: list[str]
    folders: Sequence[str | None] = ()


def check_inputs(
    source: Source, column: str, root: str, *, confined: bool, folders: bool = False
) -> CheckedInputs:
    """Resolve each input against a root, and look up its size and time.

    Args:
        source: The manifest as it was read.
        column: The column that names the inputs.
        root: The folder or URL that relative inputs are relative to.
        confined: True if each input must lie below `root`.
        folders: True if the inputs are folders.

    Returns:
        The inputs and their faults.

    Raises:
        StoreError: A store does not respond.
    """
    faults: dict[int, str] = {}
    values = source.frame[column]
    is_listing = source.form == "listing"
    names, places = resolve_names(values, root, faults, confined=confined, may_be_blank=is_listing)
    _find_duplicates(places, values, source, faults)
    if confined and not is_url(root):
        find_escapes(names, root, faults)
    digests: list[str | None] = []
    if folders:
        table, digests = _stat_folders(names, root, faults)
    else:
        table = stat_files(names, root, faults, source.seen)
    found = [f"{source.places[index]}: {text}" for index, text in sorted(faults.items())]
    return CheckedInputs(table=table, faults=found, folders=digests)


def resolve_names(
    values: pd.Series, root: str, faults: dict[int, str], *, confined: bool, may_be_blank: bool
) -> tuple[pa.StringArray, pa.StringArray]:
    """Return each file's name, and a key that only the same file has. Both are null for a fault.

    Each fault is added to `faults`, by row number.

    A path below `root` is named relative to it. A path outside keeps its form, because relative
    paths are the same on every machine. A key below a URL is not normalized: it is not a path.
    """
    for index in _suspects(values):
        reason = _why_unusable(values.iloc[index], str(values.name))
        if reason:
            faults[index] = reason
    if faults:
        values = values.astype(object)
        values.iloc[list(faults)] = None
    names = pa.array(values, pa.string(), from_pandas=True)
    if isinstance(names, pa.ChunkedArray):
        names = names.combine_chunks()
    pattern = _ODD_KEY if is_url(root) else _ODD_PATH
    odd = pc.match_substring_regex(names, pattern).fill_null(False)
    odd = pc.or_(odd, pc.match_substring(names, "://").fill_null(False))
    resolved: list[_Resolved] = []
    for index in np.flatnonzero(odd.to_numpy(zero_copy_only=False)).tolist():
        value = names[index].as_py()
        if value.strip() or may_be_blank:  # A file in a folder may be named " ".
            found = _resolve(value, root, confined=confined)
        else:
            found = _Resolved(fault=_empty_cell(str(values.name)))
        if found.fault:
            faults[index] = found.fault
        resolved.append(found)
    return (
        pc.replace_with_mask(names, odd, pa.array([r.name for r in resolved], pa.string())),
        pc.replace_with_mask(names, odd, pa.array([r.place for r in resolved], pa.string())),
    )


def _suspects(values: pd.Series) -> Iterable[int]:
    """Return the rows of values that may not be paths: those that are not ASCII text."""
    if not isinstance(values.dtype, pd.StringDtype):
        cells = enumerate(values)
        return [i for i, cell in cells if not isinstance(cell, str) or not cell.isascii()]
    plain = pc.string_is_ascii(pa.array(values, from_pandas=True)).fill_null(False)
    return np.flatnonzero(~np.asarray(plain)).tolist()


class _Resolved(NamedTuple):
    name: str | None = None
    place: str | None = None
    fault: str = ""


def _why_unusable(value: object, column: str) -> str:
    """Return why a cell cannot be a path. Empty if it can."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return f"{shown_url(value)!r} is not UTF-8. Rename the file."
        return ""
    if is_missing(value):
        return _empty_cell(column)
    return f"{value!r} in column {column!r} is not a path. Write it as text."


def _empty_cell(column: str) -> str:
    return f"no value in column {column!r}. Fill it in, or delete the row."


def _resolve(value: str, root: str, *, confined: bool) -> _Resolved:
    """Return the name and the place of an unusual path, or its fault."""
    value = without_file_scheme(value)
    if is_url(value) and url_fault(value):
        return _Resolved(fault=f"{shown_url(value)!r} {url_fault(value)}")
    if "\0" in value:
        return _Resolved(fault=f"{value!r} holds a NUL character. Remove it.")
    if is_url(value) or (is_url(root) and not os.path.isabs(value)):
        return _resolve_url(value, root, confined=confined)
    path = os.path.normpath(os.path.join(root, value))
    below = path.startswith(root.rstrip("/") + "/")
    if confined and not below:
        return _Resolved(fault=_outside(value, root))
    place = os.path.relpath(path, root) if below else path
    return _Resolved(place if below or os.path.isabs(value) else os.path.normpath(value), place)


def _resolve_url(value: str, root: str, *, confined: bool) -> _Resolved:
    below = value.removeprefix(f"{root}/") if is_url(root) else value
    if os.path.isabs(below) or (below != value and is_url(below)):
        return _Resolved(value, value)  # The relative name would mean another file.
    if not is_url(below):
        below = below.rstrip("/")
        while below.startswith("./"):
            below = below.removeprefix("./")
        if ".." in below.split("/"):
            return _Resolved(fault=f"{value!r} has '..' in it. Write the URL without '..'.")
        if is_web(root) and control_fault(below):
            return _Resolved(fault=f"{value!r} {control_fault(below)}")
    elif confined:
        return _Resolved(fault=_outside(value, root))
    return _Resolved(below, below)


def _outside(value: str, root: str, how: str = "") -> str:
    return f"{value!r} leaves the root {root}{how}. Move the file, or choose a wider --root."


def _find_duplicates(
    places: pa.StringArray, values: pd.Series, source: Source, faults: dict[int, str]
) -> None:
    if len(places.unique()) == len(places):
        return
    series = places.to_pandas()
    repeated = series.duplicated(keep=False) & series.notna()
    first: dict[str, int] = {}
    for index in np.flatnonzero(repeated.to_numpy()).tolist():
        earlier = first.setdefault(series.iloc[index], index)
        if earlier != index:
            line = source.places[earlier]
            faults[index] = f"{values.iloc[index]!r} is already listed on {line}. Delete one."


def find_escapes(names: pa.StringArray, root: str, faults: dict[int, str]) -> None:
    """Add a fault for each file that lies outside the root through a symbolic link."""
    real_root = os.path.realpath(root).rstrip("/") + "/"
    are_below: dict[str, bool] = {}
    for index, name in enumerate(names.to_pylist()):
        if name is None or index in faults:
            continue
        place = os.path.join(root, name)
        # realpath() reads every part of a path, so each folder is resolved only once.
        folder = os.path.dirname(place)
        if folder not in are_below:
            are_below[folder] = f"{os.path.realpath(folder)}/".startswith(real_root)
        is_below = are_below[folder]
        if not is_below or os.path.islink(place):
            is_below = os.path.realpath(place).startswith(real_root)
        if not is_below:
            faults[index] = _outside(name, root, " through a symbolic link")


def stat_files(
    names: pa.StringArray, root: str, faults: dict[int, str], seen: Mapping[str, FileStat]
) -> pa.Table:
    """Return files with their sizes, times and ETags, as in `Manifest.inputs`.

    A missing file is not a fault, because it may exist when the input is executed. The ETag of a
    file in a pack is its address.
    """
    is_remote = np.full(len(names), is_url(root))
    is_remote = np.asarray(pc.match_substring(names, "://").fill_null(False)) | is_remote
    sizes, times, changes = _stat_local(names, root, faults, is_remote)
    changed = pa.array(changes, mask=sizes == MISSING_SIZE)
    if not (seen or is_remote.any()):
        etags = pa.nulls(len(names), pa.string())
        return pa.table([names, sizes, times, etags, changed], COLUMNS)
    places = {
        index: join(root, names[index].as_py())
        for index in np.flatnonzero(is_remote).tolist()
        if index not in faults
    }
    known: dict[int, FileStat | None] = {
        index: seen[name] for index, name in enumerate(names.to_pylist()) if name in seen
    }
    unknown = {i: place for i, place in places.items() if i not in known and is_url(place)}
    known |= dict(zip(unknown, _stat_urls(unknown, faults), strict=True))
    found_etags: list[str | None] = [None] * len(names)
    for index, what in known.items():
        if what is not None:
            sizes[index], times[index], found_etags[index] = what
    etags = pa.array(found_etags, pa.string())
    return pa.table([names, sizes, times, etags, changed], COLUMNS)


def _stat_folders(
    names: pa.StringArray, root: str, faults: dict[int, str]
) -> tuple[pa.Table, list[str | None]]:
    """Return folders as `stat_files` returns files, and the digest of the files of each."""
    places = [join(root, name) if name is not None else "" for name in names.to_pylist()]
    found = in_threads(_look_into, places, remote.THREADS)
    states: list[Fingerprint] = []
    for index, state in enumerate(found):
        if isinstance(state, str):
            faults.setdefault(index, f"{names[index].as_py()!r} {state}")
        states.append(_NO_FOLDER if isinstance(state, str) else state)
    table = pa.table(
        [
            names,
            pa.array([state.size for state in states], pa.int64()),
            pa.array([state.mtime_ns for state in states], pa.int64()),
            pa.nulls(len(names), pa.string()),
            pa.nulls(len(names), pa.int64()),
        ],
        COLUMNS,
    )
    return table, [state.companions for state in states]


def _look_into(place: str) -> Fingerprint | str:
    """Return the state of a folder, or why it cannot be an input."""
    if not place:
        return _NO_FOLDER
    if not is_url(place) and os.path.isfile(place):
        return "is a file. Name a folder, or drop --input-kind folder."
    try:
        files = files_in(place)
    except FileNotFoundError:
        return _NO_FOLDER
    except OSError as error:
        return f"cannot be read: {error.strerror}."
    # A bucket has no empty folders.
    return folder_state(files) if files or not is_url(place) else _NO_FOLDER


def _stat_local(
    names: pa.StringArray, root: str, faults: dict[int, str], is_remote: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the sizes and both times of local files; MISSING_SIZE for missing and remote files."""
    sizes: list[int] = []
    times: list[int] = []
    changes: list[int] = []
    prefix = root if root.endswith("/") else f"{root}/"
    # The loop runs once per input, so lookups are moved out of it.
    read_status = os.stat
    for start in range(0, len(names), _CHUNK):
        chunk = names.slice(start, _CHUNK).to_pylist()
        for index in np.flatnonzero(is_remote[start : start + _CHUNK]).tolist():
            if chunk[index] is not None and is_url(join(root, chunk[index])):
                chunk[index] = None
        for name in chunk:
            size, time, change = MISSING_SIZE, 0, 0
            if name is not None:
                try:
                    status = read_status(name if name[0] == "/" else prefix + name)
                    size, time = status.st_size, status.st_mtime_ns
                    change = status.st_ctime_ns
                    if status.st_mode & _FILE_TYPE_BITS != stat.S_IFREG:
                        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
                        remedy = "Name a file"
                        if kind == "a folder":
                            remedy = "Name a file, or add --input-kind folder"
                        faults.setdefault(len(sizes), f"{name!r} is {kind}. {remedy}.")
                except OSError:
                    pass
            sizes.append(size)
            times.append(time)
            changes.append(change)
    return np.array(sizes, np.int64), _as_array(times), _as_array(changes)


def _as_array(times: list[int]) -> np.ndarray:
    try:
        return np.array(times, np.int64)
    except OverflowError:
        return np.array([recordable(time) for time in times], np.int64)


def _stat_urls(places: Mapping[int, str], faults: dict[int, str]) -> list[FileStat | None]:
    """Look up files by URL. An unusable URL scheme is a fault of each of its inputs."""
    unusable: dict[str, str] = {}
    for place in places.values():
        scheme = place.partition("://")[0]
        if scheme not in unusable:
            unusable[scheme] = remote.why_unusable(place)
    for index, place in places.items():
        fault = unusable[place.partition("://")[0]]
        if fault:
            faults[index] = f"{place!r}: {fault}"
    if any(unusable.values()):
        return [None] * len(places)
    return remote.stat_many(list(places.values()))
