"""Fetches, reads and opens the files of an input: its own file or folder, and its companions."""

import errno
import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from batchmill.core.storage import open_store, remote, transfer
from batchmill.core.storage.addresses import parse_address
from batchmill.core.storage.fingerprints import (
    Fingerprint,
    content_of,
    digest_of_files,
    fingerprint,
    joint_content,
    joint_digest,
)
from batchmill.core.storage.folder_files import files_in, folder_fingerprint
from batchmill.core.storage.ranges import RangeReader
from batchmill.core.urls import has_escaped_file, is_web
from batchmill.errors import StoreError
from batchmill.runs.inputs.failed_outcomes import MissingError, UnreadPartError
from batchmill.runs.inputs.staging import Companion, Input

# The errors of a path that leads to no file. Others, such as EMFILE or EIO, concern this machine.
_NO_FILE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL}


def fetch_and_read(item: Input) -> Fingerprint:
    """Fetch the files of an input that are remote, and read all. Raises the errors of `_read`.

    Returns:
        The fingerprint of the input. With companions, its content is that of all files. It is
        empty if a step reads the input in parts.
    """
    seen = _read_folder(item) if item.is_folder else None
    if not item.companions:
        return seen or _read(item)
    read = {column: file and (file.name, _read(file)) for column, file in item.companions.items()}
    files = {column: file and file[1].named(file[0]) for column, file in read.items()}
    contents = {column: file and (file[0], file[1].content) for column, file in read.items()}
    seen = seen or _read(item)
    return seen._replace(
        content=joint_content(seen.content, contents) if seen.content else "",
        companions=joint_digest(seen.companions, digest_of_files(files)),
    )


def _read_folder(item: Input) -> Fingerprint:
    """Fetch the files of a folder if it is remote, and read them. Raises the errors of `_read`."""
    place = item.url or item.path
    try:
        files = files_in(place)
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        files = {}
    if not (files or (not item.url and os.path.isdir(item.path))):
        raise MissingError(
            f"{place}: no such folder. Create the folder, or remove it from the manifest."
        )
    if not item.url:
        return folder_fingerprint(
            item.path, files, lambda file: content_of(f"{item.path}/{file.name}")
        )
    for name in files:
        # Such a copy could be in another folder, or replace that of another file.
        if any(part in ("", ".", "..") or len(part.encode()) > 255 for part in name.split("/")):
            raise StoreError(place, f"a folder of this machine cannot hold {name!r}. Rename it.")
    os.makedirs(item.path, exist_ok=True)
    parts = [
        Companion(name, f"{item.path}/{name}", f"{item.url}/{name}", remote.FileStat(*file[1:4]))
        for name, file in files.items()
    ]
    seen = {part.name: _read(part) for part in parts}
    now = {name: seen_file.named(name) for name, seen_file in seen.items()}
    return folder_fingerprint(item.url, now, lambda file: seen[file.name].content)


def _read(item: Input | Companion) -> Fingerprint:
    """Fetch a file if it is remote, and read it.

    Raises:
        MissingError: The file does not exist.
        StoreError: The store failed, or denies access to this file.
        OSError: The file exists, but cannot be read now.
    """
    try:
        if isinstance(item, Input) and item.in_parts:
            os.makedirs(os.path.dirname(item.path), exist_ok=True)
            return transfer.fetch_head(item.url, item.path)
        return _fetch(item, item.planned) if item.planned else fingerprint(item.path)
    except StoreError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise _missing(item, error.reason) from error
        if isinstance(error.__cause__, PermissionError):
            remote.check_bucket(item.url)  # Raises if the bucket denies access to all inputs.
        elif not is_web(item.url):  # Other inputs may be on other web servers.
            raise
        # Without its cause, the error concerns only this input.
        raise StoreError(error.path, error.reason) from None
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        if not item.url and has_escaped_file(item.path):
            text = f"{item.path}: the file's name is not UTF-8. Rename the file."
            raise MissingError(text) from error
        raise _missing(item, "no such file.") from error


def _missing(item: Input | Companion, why: str) -> MissingError:
    place = item.url or item.path
    return MissingError(f"{place}: {why} Create the file, or remove it from the manifest.")


def _fetch(item: Input | Companion, planned: remote.FileStat) -> Fingerprint:
    """Fetch a file. Return a fingerprint whose fields all describe the same content."""
    os.makedirs(os.path.dirname(item.path), exist_ok=True)
    if planned.etag and parse_address(planned.etag):
        store = open_store(item.url.removesuffix(f"/{planned.etag}"))
        with store.open(planned.etag) as content, open(item.path, "wb") as file:
            shutil.copyfileobj(content, file)
        return transfer.stored_fingerprint(item.path, planned.mtime_ns, planned.etag)
    return transfer.fetch_planned(item.url, item.path, planned)


def reads_in_parts(url: str, planned: remote.FileStat | None) -> bool:
    """Return whether an input is read in parts, if its step takes an open file.

    Args:
        url: The URL of the input. Empty for a local file.
        planned: Its state when the run was planned.
    """
    if planned is None or is_web(url) or parse_address(planned.etag or ""):
        # Some web servers send only whole files. A file in a pack is small.
        return False
    # S3 rejects a request for a part of an empty file. Without an ETag or a time, only the content
    # shows a change.
    return planned.size > 0 and planned.mtime_ns != remote.UNKNOWN_TIME


@contextmanager
def opened(item: Input, seen: Fingerprint) -> Iterator[BinaryIO]:
    """Open an input for reading. The name of the file has no folder.

    Args:
        item: The input, after `fetch_and_read`.
        seen: The fingerprint that it returned.

    Raises:
        UnreadPartError: The store failed in the block, or the input changed.
    """
    name = os.path.basename(item.path)
    if not item.in_parts or os.path.getsize(item.path) == seen.size:
        whole = io.FileIO(item.path)
        whole.name = name
        with io.BufferedReader(whole) as file:
            yield file
        return
    # A request for a part describes only the input's own file, and not its content.
    state = seen._replace(companions=None, content="")
    head = Path(item.path).read_bytes()
    parts = RangeReader(
        name, seen.size, head, lambda start, stop: transfer.read_range(item.url, start, stop, state)
    )
    try:
        with io.BufferedReader(parts) as file:
            yield file
    finally:
        if parts.fault:
            raise UnreadPartError(parts.fault)
