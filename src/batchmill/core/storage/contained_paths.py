"""Open and remove files below a folder. Links are not followed, so nothing outside changes.

Each folder of a name is opened relative to the folder before it, and must not be a link. A link
that another process creates in the meantime has no effect: an open folder stays the same folder.
Links above the root are followed, because the user named that path.

Every function raises StoreError for a name that points outside the root, and OSError with ELOOP for
a link in the name.
"""

import ctypes
import errno
import os
import shutil
import stat
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from typing import BinaryIO

from batchmill.core.storage.store import parts_of

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_MAKE_TRIES = 100
# Only Linux has `syncfs`.
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def open_folder(root: str, name: str, *, make: bool = False) -> int:
    """Open a folder below the root.

    Args:
        root: The path of the root.
        name: The name of the folder; the root itself if empty.
        make: Create the folder and those above it.

    Returns:
        The file descriptor.
    """
    parts = parts_of(root, name)
    for _ in range(_MAKE_TRIES - 1 if make else 0):
        # Another process may have removed a folder that was still empty.
        with suppress(FileNotFoundError):
            return _open_parts(root, parts, make=make)
    return _open_parts(root, parts, make=make)


def _open_parts(root: str, parts: list[str], *, make: bool) -> int:
    if make:
        os.makedirs(root, exist_ok=True)
    if not parts:
        return os.open(root, _FOLDER)
    # O_NOFOLLOW applies to the last part of a path only, so one call opens the root and this part.
    path = f"{root}/{parts[0]}"
    descriptor = _open(path, None, path, make=make)
    for part in parts[1:]:
        path = f"{path}/{part}"
        with closing(descriptor) as outer:
            descriptor = _open(part, outer, path, make=make)
    return descriptor


@contextmanager
def closing(descriptor: int) -> Iterator[int]:
    """Close a file descriptor after the block."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def folder_of(root: str, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
    """Open the folder that contains a file, and close it after the block.

    Yields:
        The file descriptor of the folder, and the last part of the name.
    """
    parts_of(root, name)
    folder, _, last = name.rpartition("/")
    with closing(open_folder(root, folder, make=make)) as descriptor:
        yield descriptor, last


def open_file(root: str, name: str) -> FileIO:
    """Open a file to read it, without a buffer."""
    with folder_of(root, name) as (folder, last):
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            return FileIO(os.open(last, flags, dir_fd=folder))
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise _link_error(f"{root}/{name}") from error
            raise


def stat_entry(root: str, name: str) -> os.stat_result | None:
    """Return the status of a file, folder or link; None if the name does not exist."""
    try:
        with folder_of(root, name) as (folder, last):
            return os.stat(last, dir_fd=folder, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None


def remove_tree(place: str, folder: int | None = None) -> None:
    """Remove a folder and its content. Links in it are removed, not followed.

    Args:
        place: The path of the folder.
        folder: The open folder that the path is relative to. None for an absolute path.
    """
    try:
        shutil.rmtree(place, ignore_errors=True, dir_fd=folder)
    except RecursionError:  # The folders are nested too deeply for Python.
        above = None if folder is None else f"/dev/fd/{folder}"
        subprocess.run(["rm", "-rf", "--", place], cwd=above, check=False)  # noqa: S607


def sync_file_system(path: str) -> None:
    """Write all changed data of the file system of a folder to its disk.

    For many small files, this takes a fraction of the time of one `fsync` a file.
    """
    with closing(os.open(path, _FOLDER)) as folder:
        if _LIBC is None:
            os.sync()
        elif _LIBC.syncfs(folder):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), path)


def temporary_name(name: str) -> str:
    """Return a new name for a file or folder that is being written."""
    return f".{name}.part-{uuid.uuid4().hex}"


@contextmanager
def temporary_file(folder: int, name: str, writer: Callable[[BinaryIO], object]) -> Iterator[str]:
    """Write a temporary file in an open folder with `writer`, and remove it after the block.

    Yields:
        The name of the temporary file in the folder.
    """
    temporary = temporary_name(name)
    try:
        with open(os.open(temporary, _CREATE, 0o666, dir_fd=folder), "wb") as file:
            writer(file)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        with suppress(OSError):  # The file was renamed in the block.
            os.unlink(temporary, dir_fd=folder)


def link_file(folder: int, temporary: str, name: str) -> None:
    """Link a complete temporary file to its name. Raise FileExistsError if the name exists."""
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK):
            raise
        # Some shared file systems have no hard links. There, the name appears before its content.
        with (
            open(os.open(name, _CREATE, 0o666, dir_fd=folder), "wb") as file,
            open(os.open(temporary, os.O_RDONLY, dir_fd=folder), "rb") as source,
        ):
            file.write(source.read())


def _open(place: str, outer: int | None, path: str, *, make: bool) -> int:
    if make:
        with suppress(FileExistsError):
            os.mkdir(place, dir_fd=outer)
    try:
        return os.open(place, _FOLDER | os.O_NOFOLLOW, dir_fd=outer)
    except NotADirectoryError as error:
        if stat.S_ISLNK(os.stat(place, dir_fd=outer, follow_symlinks=False).st_mode):
            raise _link_error(path) from error
        raise


def _link_error(path: str) -> OSError:
    return OSError(errno.ELOOP, "is a link", path)
