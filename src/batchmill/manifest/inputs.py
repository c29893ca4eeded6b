"""Check the inputs of a manifest: each is named once, and is a file, as far as a look can tell.

A million rows pass through whole columns at a time; Python looks only at those that are odd.
"""

import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from batchmill.manifest.source import Source
from batchmill.storage import is_url, remote
from batchmill.storage.fingerprints import recordable
from batchmill.storage.remote import FileStat
from batchmill.storage.urls import (
    control_fault,
    is_web,
    join,
    shown_url,
    url_fault,
    without_file_scheme,
)

MISSING_SIZE = -1

# What is not a plain relative path: absolute, or with // or . or .. in it, or no path at all.
_ODD = r"^/|/$|//|(^|/)\.\.?(/|$)|\x00|^\s*$"
# Of a key, what is no key or might be taken for more than one.
_ODD_KEY = r"^/|^\.{1,2}/|/\.\.(/|$)|/$|[\x00-\x1f\x7f]|^\s*$"
# So many names are Python objects at a time.
_CHUNK = 65_536
# The bits of a file's mode that say what kind of file it is.
_FORM = 0o170000


@dataclass(frozen=True, kw_only=True)
class CheckedInputs:
    """`table` is as Manifest.inputs; it counts only if `faults` is empty."""

    table: pa.Table
    faults: list[str]


def check_inputs(source: Source, column: str, root: str, *, confined: bool) -> CheckedInputs:
    """Resolve each input against the folder or URL `root`, and look at it.

    `confined` ones stay below. Raises StoreError where a store does not answer.
    """
    faults: dict[int, str] = {}
    values = source.frame[column]
    names, places = _names(values, root, faults, confined=confined)
    _find_duplicates(places, values, source, faults)
    if confined and not is_url(root):
        _find_escapes(names, root, faults)
    sizes, times, etags = _look(names, root, faults, source.seen)
    table = pa.table({"input": names, "size": sizes, "mtime_ns": times, "etag": etags})
    found = [f"{source.places[index]}: {text}" for index, text in sorted(faults.items())]
    return CheckedInputs(table=table, faults=found)


def _names(
    values: pd.Series, root: str, faults: dict[int, str], *, confined: bool
) -> tuple[pa.StringArray, pa.StringArray]:
    """Return each input's name, and one for its place that only the same file has; null at a fault.

    A path below `root` is named relative to it. One that leaves it keeps its form: relative paths
    are the same on every machine. What is below a URL is taken as it is: keys are no paths.
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
    pattern = _ODD_KEY if is_url(root) else _ODD
    odd = pc.match_substring_regex(names, pattern).fill_null(False)
    odd = pc.or_(odd, pc.match_substring(names, "://").fill_null(False))
    resolved: list[_Resolved] = []
    for index in np.flatnonzero(odd.to_numpy(zero_copy_only=False)).tolist():
        value = names[index].as_py()
        found = _resolve(value, root, str(values.name), confined=confined)
        if found.fault:
            faults[index] = found.fault
        resolved.append(found)
    return (
        pc.replace_with_mask(names, odd, pa.array([r.name for r in resolved], pa.string())),
        pc.replace_with_mask(names, odd, pa.array([r.place for r in resolved], pa.string())),
    )


def _suspects(values: pd.Series) -> Iterable[int]:
    """Return the rows of those values that may be no path: what is no text, or not ASCII."""
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
    """Say why a cell cannot be a path; empty if it can."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return f"{shown_url(value)!r} is not UTF-8. Rename the file."
        return ""
    if is_missing(value):
        return f"no value in column {column!r}. Fill it in, or drop the row."
    return f"{value!r} in column {column!r} is no path. Write it as text."


def _resolve(value: str, root: str, column: str, *, confined: bool) -> _Resolved:
    """Return an odd path's name and place, or what is wrong with it."""
    if not value.strip():
        return _Resolved(fault=f"no value in column {column!r}. Fill it in, or drop the row.")
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
        return _Resolved(fault=f"{value!r} leaves the root {root}. Move the file, or widen --root.")
    place = os.path.relpath(path, root) if below else path
    return _Resolved(place if below or os.path.isabs(value) else os.path.normpath(value), place)


def _resolve_url(value: str, root: str, *, confined: bool) -> _Resolved:
    below = value.removeprefix(f"{root}/") if is_url(root) else value
    if os.path.isabs(below) or (below != value and is_url(below)):
        return _Resolved(value, value)  # Relative, it would be another's name.
    if not is_url(below):
        below = below.rstrip("/")
        while below.startswith("./"):
            below = below.removeprefix("./")
        if ".." in below.split("/"):
            return _Resolved(fault=f"{value!r} has '..' in it, which no URL knows. Write it out.")
        if is_web(root) and control_fault(below):
            return _Resolved(fault=f"{value!r} {control_fault(below)}")
    elif confined:
        return _Resolved(fault=f"{value!r} leaves the root {root}. Move the file, or widen --root.")
    return _Resolved(below, below)


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
            faults[index] = f"{values.iloc[index]!r} is listed already on {line}. Keep one."


def _find_escapes(names: pa.StringArray, root: str, faults: dict[int, str]) -> None:
    """Find what is below the root by its name only, and leads out of it by a symbolic link."""
    real_root = os.path.realpath(root).rstrip("/") + "/"
    are_below: dict[str, bool] = {}
    for index, name in enumerate(names.to_pylist()):
        if name is None or index in faults:
            continue
        place = os.path.join(root, name)
        # A folder has many files, and to resolve a path is to look at each part of it.
        folder = os.path.dirname(place)
        if folder not in are_below:
            are_below[folder] = f"{os.path.realpath(folder)}/".startswith(real_root)
        is_below = are_below[folder]
        if not is_below or os.path.islink(place):
            is_below = os.path.realpath(place).startswith(real_root)
        if not is_below:
            faults[index] = (
                f"{name!r} leaves the root {root} by a symbolic link. "
                "Move the file, or widen --root."
            )


def _look(
    names: pa.StringArray, root: str, faults: dict[int, str], seen: Mapping[str, FileStat]
) -> tuple[np.ndarray, np.ndarray, pa.StringArray]:
    """Return each input's size, time and ETag; what is not there may be when its turn comes."""
    far = np.full(len(names), is_url(root))
    far = np.asarray(pc.match_substring(names, "://").fill_null(False)) | far
    sizes, times = _look_here(names, root, faults, far)
    if not far.any():
        return sizes, times, pa.nulls(len(names), pa.string())
    places = {
        index: join(root, names[index].as_py())
        for index in np.flatnonzero(far).tolist()
        if index not in faults
    }
    elsewhere = {index: place for index, place in places.items() if is_url(place)}
    etags: list[str | None] = [None] * len(names)
    if seen:
        found = [seen.get(names[index].as_py()) for index in elsewhere]
    else:
        found = _ask_stores(elsewhere, faults)
    for index, what in zip(elsewhere, found, strict=True):
        if what is not None:
            sizes[index], times[index], etags[index] = what
    return sizes, times, pa.array(etags, pa.string())


def _look_here(
    names: pa.StringArray, root: str, faults: dict[int, str], far: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Look at files of this machine: a million times, so what can be said once is said before."""
    sizes: list[int] = []
    times: list[int] = []
    prefix = root if root.endswith("/") else f"{root}/"
    look = os.stat
    for start in range(0, len(names), _CHUNK):
        chunk = names.slice(start, _CHUNK).to_pylist()
        for index in np.flatnonzero(far[start : start + _CHUNK]).tolist():
            if chunk[index] is not None and is_url(join(root, chunk[index])):
                chunk[index] = None
        for name in chunk:
            size, time = MISSING_SIZE, 0
            if name is not None:
                try:
                    status = look(name if name[0] == "/" else prefix + name)
                    size, time = status.st_size, status.st_mtime_ns
                    if status.st_mode & _FORM != stat.S_IFREG:
                        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "no regular file"
                        faults.setdefault(len(sizes), f"{name!r} is {kind}. Name a file.")
                except OSError:
                    pass
            sizes.append(size)
            times.append(time)
    try:
        return np.array(sizes, np.int64), np.array(times, np.int64)
    except OverflowError:
        return np.array(sizes, np.int64), np.array([recordable(time) for time in times], np.int64)


def _ask_stores(places: Mapping[int, str], faults: dict[int, str]) -> list[FileStat | None]:
    """Look at files by URL; where none of a kind can be opened, that is each one's fault."""
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
    return remote.look_at(list(places.values()))


def is_missing(value: object) -> bool:
    """Tell whether a cell is empty: None, NA or NaN."""
    return value is None or value is pd.NA or (isinstance(value, float) and value != value)
