"""Check the inputs of a manifest: each is a valid name, listed once, and not a folder.

Whole columns are checked at a time. Only unusual rows are handled in Python one by one, because a
manifest may have millions of rows.
"""

import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core import urls
from batchmill.core.manifest.file_stats import FILES, stat_files, stat_folders
from batchmill.core.manifest.source import Source
from batchmill.core.security.allowlist import INPUTS, listed_in, refused_inputs
from batchmill.core.storage import is_url
from batchmill.core.storage.large_tables import SLICE_ROWS, collected
from batchmill.core.storage.name_search import repeated
from batchmill.core.table_cells import is_missing

# For each input its name, and a key that only the same file has.
_RESOLVED = pa.schema([("name", pa.string()), ("place", pa.string())])
# Not a plain relative path: absolute, with // or . or .. in it, or not a path at all.
_ODD_PATH = r"^/|/$|//|(^|/)\.\.?(/|$)|\x00|^\s*$"
# Not a plain key below a URL: not a key at all, or ambiguous.
_ODD_KEY = r"^/|^\.{1,2}/|/\.\.(/|$)|/$|[\x00-\x1f\x7f]|^\s*$"


def check_inputs(
    source: Source, column: str, root: str, all_faults: list[str], *, confined: bool, folders: bool
) -> pa.Table:
    """Resolve each input against a root, and look up its size and time.

    Args:
        source: The manifest as it was read.
        column: The column that names the inputs.
        root: The folder or URL that relative inputs are relative to.
        all_faults: One sentence per fault is added, with its line.
        confined: True if each input must lie below `root`.
        folders: True if the inputs are folders.

    Returns:
        The columns of FILES, and `companions`: the digests of folders, null for files. Valid only
        without a fault.

    Raises:
        StoreError: A store does not respond.
    """
    faults: dict[int, str] = {}
    values = source.frame[column]
    both = collected(_resolved(values, source, root, faults, confined=confined), _RESOLVED)
    _find_duplicates(both["place"], values, source, faults)
    if folders:
        table = stat_folders(both["name"].combine_chunks(), root, faults)
        if confined or listed_in(INPUTS) is not None:
            _find_links_in_folders(table["input"], root, faults, confined=confined)
    elif source.files is not None:
        known = [source.files[name] for name in ("size", "mtime_ns", "etag")]
        table = pa.table([both["name"], *known, pa.nulls(len(values), pa.int64())], schema=FILES)
    else:
        table = stat_files(both["name"], root, faults, source.seen)
    if not folders:
        table = table.append_column("companions", pa.nulls(len(values), pa.string()))
    if not faults:
        faults = refused_names(table["input"], root)
    all_faults += [f"{source.places[index]}: {text}" for index, text in sorted(faults.items())]
    return table


def refused_names(names: pa.Array | pa.ChunkedArray, root: str) -> dict[int, str]:
    """Return why the allowlist rejects files, by row."""
    return refused_inputs(urls.join(root, name.as_py()) for name in names)


def _resolved(
    values: pd.Series, source: Source, root: str, faults: dict[int, str], *, confined: bool
) -> Iterator[pa.Table]:
    """Yield the names and keys of inputs, some at a time."""
    for start in range(0, len(values), SLICE_ROWS):
        own: dict[int, str] = {}
        names, places = resolve_names(
            values.iloc[start : start + SLICE_ROWS],
            root,
            own,
            confined=confined,
            may_be_blank=source.form == "listing",
        )
        faults.update((start + row, text) for row, text in own.items())
        yield pa.table([names, places], schema=_RESOLVED)


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
            resolution = _resolve(value, root, confined=confined)
        else:
            resolution = _Resolved(fault=_empty_cell(str(values.name)))
        if resolution.fault:
            faults[index] = resolution.fault
        resolved.append(resolution)
    places = pc.replace_with_mask(names, odd, pa.array([r.place for r in resolved], pa.string()))
    names = pc.replace_with_mask(names, odd, pa.array([r.name for r in resolved], pa.string()))
    if confined and not is_url(root):
        _find_escapes(names, root, faults)
    return names, places


def _suspects(values: pd.Series) -> Iterable[int]:
    """Return the rows of values that may not be paths: those that are not ASCII text."""
    kind = getattr(values.dtype, "pyarrow_dtype", None)
    if kind != pa.string() and not isinstance(values.dtype, pd.StringDtype):
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
            return f"{urls.shown_url(value)!r} is not UTF-8. Rename the file."
        return ""
    if is_missing(value):
        return _empty_cell(column)
    return f"{value!r} in column {column!r} is not a path. Write it as text."


def _empty_cell(column: str) -> str:
    return f"no value in column {column!r}. Fill it in, or delete the row."


def _resolve(value: str, root: str, *, confined: bool) -> _Resolved:
    """Return the name and the place of an unusual path, or its fault."""
    value = urls.without_file_scheme(value)
    if is_url(value) and urls.url_fault(value):
        return _Resolved(fault=f"{urls.shown_url(value)!r} {urls.url_fault(value)}")
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
        if urls.is_web(root) and urls.control_fault(below):
            return _Resolved(fault=f"{value!r} {urls.control_fault(below)}")
    elif confined:
        return _Resolved(fault=_outside(value, root))
    return _Resolved(below, below)


def _outside(value: str, root: str, how: str = "") -> str:
    return f"{value!r} leaves the root {root}{how}. Move the file, or choose a wider --root."


def _find_duplicates(
    places: pa.ChunkedArray, values: pd.Series, source: Source, faults: dict[int, str]
) -> None:
    first: dict[int, int] = {}
    for row, number in zip(*map(np.ndarray.tolist, repeated(places)), strict=True):
        earlier = first.setdefault(number, row)
        if earlier != row and places[row].is_valid:
            line = source.places[earlier]
            faults[row] = f"{values.iloc[row]!r} is already listed on {line}. Delete one."


def _find_escapes(names: pa.StringArray, root: str, faults: dict[int, str]) -> None:
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


def _find_links_in_folders(
    names: pa.ChunkedArray, root: str, faults: dict[int, str], *, confined: bool
) -> None:
    """Add a fault for each folder with a link to a file that may not be read."""
    real_root = os.path.realpath(root).rstrip("/") + "/"
    for index, name in enumerate(names.to_pylist()):
        if name is None or index in faults:
            continue
        walked = os.walk(urls.join(root, name))
        paths = (os.path.join(folder, file) for folder, _, files in walked for file in files)
        for link in filter(os.path.islink, paths):
            is_outside = confined and not os.path.realpath(link).startswith(real_root)
            refused = refused_inputs([link])
            if is_outside or refused:
                text = _outside(os.path.relpath(link, root), root, " through a symbolic link")
                faults[index] = text if is_outside else refused[0]
