"""Choose the reader for a manifest, by its type, its URL or the suffix of its file name."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd

from batchmill.core.manifest import listing
from batchmill.core.manifest.dataset_manifest import read_version
from batchmill.core.manifest.delimited import read_delimited
from batchmill.core.manifest.records import flat, read_json_lines, read_parquet
from batchmill.core.manifest.source import ManifestLike, Source, duplicate_column_faults, numbered
from batchmill.core.security.allowlist import refused_inputs
from batchmill.core.storage import if_exists, is_url, remote
from batchmill.core.urls import is_web, last_part, without_file_scheme
from batchmill.errors import ManifestError, StoreError

# The reader of each kind of table. It gets the path or URL of a file, and its content.
_READERS: dict[str, Callable[[str, bytes], Source]] = {
    ".csv": partial(read_delimited, separator=","),
    **dict.fromkeys((".tsv", ".tab"), partial(read_delimited, separator="\t")),
    **dict.fromkeys((".jsonl", ".ndjson"), read_json_lines),
    **dict.fromkeys((".parquet", ".pq"), read_parquet),
}


def read_source(
    source: ManifestLike, pattern: str, *, may_be_empty: bool, folders: bool = False
) -> Source:
    """Read a manifest of any form, without checking its inputs.

    Args:
        source: A file, folder or glob, as a path or URL; a list of paths and URLs; a DataFrame.
        pattern: The pattern that files of a folder or bucket prefix must match.
        may_be_empty: True to accept a bucket prefix without files.
        folders: True to list folders, not files.

    Returns:
        The manifest's rows and the faults that its reader found.

    Raises:
        ManifestError: The manifest does not exist or cannot be read.
    """
    if isinstance(source, pd.DataFrame):
        return _read_frame(source)
    if not isinstance(source, str | os.PathLike):
        return _in_memory("the list", pd.DataFrame({"input": pd.Series([*source], dtype=object)}))
    text = os.fspath(source)
    if not text:
        raise ManifestError("manifest", ["has no name. Name a file, a folder or a glob."])
    text = without_file_scheme(text)
    refused = refused_inputs([text])
    if refused:
        raise ManifestError(text, list(refused.values()))
    if is_url(text):
        return _read_url(text, pattern, may_be_empty=may_be_empty, folders=folders)
    return _read_path(text, pattern, folders=folders)


def _read_frame(source: pd.DataFrame) -> Source:
    frame = flat(source).rename(columns=str)
    faults = duplicate_column_faults(list(frame.columns))
    if faults:
        raise ManifestError("the DataFrame", faults)
    return _in_memory("the DataFrame", frame)


def _in_memory(name: str, frame: pd.DataFrame) -> Source:
    for column, cells in frame.items():
        if cells.dtype == object:
            texts = [os.fspath(cell) if isinstance(cell, Path) else cell for cell in cells]
            frame[column] = pd.Series(texts, frame.index, object)
    return Source(
        name=name,
        form="typed",
        frame=frame,
        folder=os.getcwd(),
        locate=numbered("row", len(frame), first=0),
        faults=[] if len(frame) else ["is empty. Give at least one input."],
    )


def _read_path(text: str, pattern: str, *, folders: bool) -> Source:
    path = Path(text)
    try:
        if path.is_dir():
            return listing.read_folder(path, pattern, folders=folders)
        if path.is_file():
            return _read_file(str(path), path.read_bytes)
        if path.exists():
            raise ManifestError(text, ["is not a regular file. Name a file or a folder."])
    except OSError as error:
        raise ManifestError(
            # The unreadable folder may be deep below the folder that the user named.
            str(error.filename or text),
            [f"cannot be read: {error.strerror}. Check the path and its permissions."],
        ) from error
    version = read_version(text, pattern)
    if version:
        return version
    if listing.is_glob(text):
        return listing.read_glob(text, pattern, folders=folders)
    searched = "" if path.is_absolute() else f" (looked in {os.getcwd()})"
    raise ManifestError(text, [f"no such file or folder{searched}. Check the path."])


def _read_url(url: str, pattern: str, *, may_be_empty: bool, folders: bool) -> Source:
    try:
        remote.check_url(url)
        if is_web(url):
            return _read_web_file(url)
        is_table = _suffix(url) in _READERS and not url.endswith("/")
        content = if_exists(remote.read, url) if is_table else None
        if content:  # In Azure, a folder may be an empty file.
            return _read_file(url, lambda: content)
        objects = remote.find_table(url)
        if not len(objects):
            other = _read_other_url(url, pattern, folders=folders)
            if other:
                return other
            if not may_be_empty:
                raise ManifestError(url, ["no such file, and no files below it. Check the URL."])
        return listing.read_prefix(url, pattern, objects, folders=folders)
    except StoreError as error:
        raise ManifestError(error.path, [error.reason]) from error


def _read_web_file(url: str) -> Source:
    # A server may send a page for a folder, so a read does not show that there is a file.
    if url.endswith("/"):
        raise ManifestError(url, ["is a folder, and a web server cannot list it. Name a table."])
    if not remote.stat(url):
        # stat() reports each error of a web server as a missing file. read() raises the reason.
        remote.read(url)
    return _read_file(url, lambda: remote.read(url))


def _read_other_url(url: str, pattern: str, *, folders: bool) -> Source | None:
    """Read what a URL without files below it names: a file, a glob, or a version of a dataset."""
    if not url.endswith("/") and remote.stat(url):
        return _read_file(url, lambda: remote.read(url))
    remote.check_bucket(url)
    if listing.is_glob(url):
        if folders:
            fault = "a glob in a bucket lists files. List the folders in a table instead."
            raise ManifestError(url, [fault])
        return listing.read_url_glob(url, pattern)
    return read_version(url, pattern)


def _suffix(place: str) -> str:
    return os.path.splitext(last_part(place))[1].lower()


def _read_file(place: str, read: Callable[[], bytes]) -> Source:
    reader = _READERS.get(_suffix(place))
    if reader:
        return reader(place, read())
    known = ", ".join(sorted(_READERS))
    fault = (
        f"unknown manifest format. Name a table ({known}), a folder or a quoted glob. To run a "
        "step on one file, use `batchmill try`."
    )
    raise ManifestError(place, [fault])
