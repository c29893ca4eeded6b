"""A store in a local folder, or in a folder that several machines share."""

import errno
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import pyarrow as pa

from batchmill.core.layout import FILES, PACKS, STAGING
from batchmill.core.storage import contained_paths
from batchmill.core.storage.addresses import PackedFiles, parse_address
from batchmill.core.storage.fingerprints import hash_file
from batchmill.core.storage.retries import retry_local
from batchmill.core.storage.store import Store, Upload, no_check
from batchmill.core.storage.store_errors import store_fault
from batchmill.errors import StoreError

_TEMPORARY = re.compile(r"\..+\.part-[0-9a-f]{32}")
# With less free space than this, even a small write may fail.
_ROOM_BYTES = 2**20
_COPY_BYTES = 2**20
# The name of a folder is in use. A rename never replaces a folder that contains files.
_TAKEN = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}


class LocalStore(Store):
    """A store whose names are paths below one folder. No part of a name may be a link.

    A file is written under a temporary name, flushed to the disk, then renamed. After a power cut,
    the name has the old content or the new content.
    """

    threads = 1

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.url = os.fspath(root)
        self.root = Path(root)
        self.before_change: Callable[[], None] = no_check
        self.packed = PackedFiles(self)

    def url_of(self, name: str) -> str:
        """Return the path of `name`."""
        return str(self.root / name)

    def exists(self, name: str) -> bool:
        """Return whether the name exists."""
        return self._seen(name) is not None

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder in sorted order, without files that are being written."""
        return sorted(name for name, _ in self._list(folder) if not _TEMPORARY.fullmatch(name))

    def links(self, folder: str) -> list[str]:
        """Return the names in a folder that are links, in sorted order."""
        return sorted(name for name, mode in self._list(folder) if stat.S_ISLNK(mode))

    def files(self, folder: str) -> Iterator[str]:
        """Yield the names of all files below a folder, and of empty folders, with a slash."""
        entries = sorted(self._list(folder))
        if not entries and self.exists(folder):
            yield f"{folder}/"
        for last, mode in entries:
            if stat.S_ISDIR(mode):
                yield from self.files(f"{folder}/{last}")
            else:
                yield f"{folder}/{last}"

    def file_sizes(self, names: Sequence[str]) -> Iterable[int | None]:
        """Return the size of each file outside packs in bytes, None if there is no file."""
        # A plan may need a million sizes, so this is the fast way. It follows links in a path. That
        # is harmless, because no file is opened.
        prefix = f"{self.root}/"
        for name in names:
            try:
                seen = os.lstat(prefix + name)
                yield seen.st_size if stat.S_ISREG(seen.st_mode) else None
            except (FileNotFoundError, NotADirectoryError):
                yield None
            except OSError:
                again = self._seen(name)
                yield again.st_size if again and stat.S_ISREG(again.st_mode) else None

    @retry_local
    def _content_of_file(self, name: str) -> str:
        with self._faults(name), contained_paths.open_file(self.url, name) as file:
            return hash_file(file)

    @retry_local
    def _read_file(self, name: str) -> bytes:
        with self._faults(name), contained_paths.open_file(self.url, name) as file:
            return file.read()

    @retry_local
    def _open_file(self, name: str) -> pa.NativeFile:
        """Map a file into memory."""
        with self._faults(name), contained_paths.open_file(self.url, name) as file:
            # Arrow can map only a path. Python's `mmap` would keep a file descriptor open, and
            # Arrow's threads could release it only while the interpreter runs.
            return pa.memory_map(f"/proc/self/fd/{file.fileno()}")

    @retry_local
    def read_range(self, name: str, offset: int, size: int) -> bytes:
        """Return a part of a file. It is shorter if the file ends before."""
        with self._faults(name), contained_paths.open_file(self.url, name) as file:
            return os.pread(file.fileno(), size, offset)

    @retry_local
    def write_atomic(self, name: str, writer: Callable[[BinaryIO], object]) -> None:
        """Write a temporary file with `writer`, then replace `name` with it."""
        self.before_change()
        with (
            self._faults(name),
            contained_paths.folder_of(self.url, name, make=True) as (folder, last),
            contained_paths.temporary_file(folder, last, writer) as temporary,
        ):
            # A rename is atomic only within one file system, so the temporary file is beside it.
            os.rename(temporary, last, src_dir_fd=folder, dst_dir_fd=folder)

    def copy(self, source: str, target: str) -> None:
        """Copy a file within the store, and replace an earlier one."""

        def write(file: BinaryIO) -> None:
            with contained_paths.open_file(self.url, source) as original:
                shutil.copyfileobj(original, file, _COPY_BYTES)

        self.write_atomic(target, write)

    @retry_local
    def create(self, name: str, data: bytes) -> bool:
        """Write a file that does not exist yet. Return False if it exists.

        If several processes call this for one name, one of them succeeds.
        """
        self.before_change()
        with (
            self._faults(name),
            contained_paths.folder_of(self.url, name, make=True) as (folder, last),
        ):
            with suppress(FileNotFoundError):
                os.stat(last, dir_fd=folder, follow_symlinks=False)
                return False  # Usually it exists, and then no temporary file is synced.
            try:
                with contained_paths.temporary_file(
                    folder, last, lambda file: file.write(data)
                ) as temporary:
                    contained_paths.link_file(folder, temporary, last)
            except (FileExistsError, FileNotFoundError):
                # FileNotFoundError: another process succeeded, and has removed this temporary file.
                return False
        return True

    @retry_local
    def delete(self, name: str) -> None:
        """Remove a file, and the folders of outputs that become empty."""
        self.before_change()
        # There may be no file of this name.
        no_file = suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError)
        with (
            self._faults(name),
            no_file,
            contained_paths.folder_of(self.url, name) as (folder, last),
        ):
            os.unlink(last, dir_fd=folder)
        if name.startswith(f"{FILES}/"):
            with suppress(OSError):  # The folder is not empty.
                for above in PurePosixPath(name).parents[:-2]:
                    with contained_paths.folder_of(self.url, str(above)) as (folder, last):
                        os.rmdir(last, dir_fd=folder)

    def remove(self, name: str) -> None:
        """Remove a file, or a folder and its content. Ignore a name that does not exist."""
        self.before_change()
        seen = self._seen(name)
        if seen and stat.S_ISDIR(seen.st_mode):
            self._remove_tree(name)
        else:
            self.delete(name)

    @retry_local
    def _remove_tree(self, name: str) -> None:
        with self._faults(name), contained_paths.folder_of(self.url, name) as (folder, last):
            contained_paths.remove_tree(last, folder)

    @retry_local
    def put_folder(self, folder: Path, name: str, contents: Mapping[str, str]) -> list[Upload]:
        """Move a folder to `name`, unless the same files are there already."""
        self.before_change()
        with self._faults(name), contained_paths.folder_of(self.url, name) as (above, last):
            try:
                _move(folder, above, last)
                return []
            except OSError as error:
                if error.errno not in _TAKEN:
                    raise
            if self._has(name, contents):
                remove_folder(folder)
                return []
            # The existing folder is damaged: its name depends on its contents.
            aside = contained_paths.temporary_name(last)
            os.rename(last, aside, src_dir_fd=above, dst_dir_fd=above)
            _move(folder, above, last)
            self.remove(f"{PurePosixPath(name).parent}/{aside}")
        return []

    def _has(self, folder: str, contents: Mapping[str, str]) -> bool:
        """Return whether a folder has exactly these files, with these contents."""
        try:
            if sorted(self.files(folder)) != sorted(f"{folder}/{file}" for file in contents):
                return False
            return all(self.content_of(f"{folder}/{file}") == contents[file] for file in contents)
        except StoreError:  # A link, or something that cannot be read.
            return False

    @retry_local
    def sync(self, names: Sequence[str]) -> None:
        """Wait until these files are on the disk. Files outside packs are many: sync all files."""
        places = [parse_address(name) for name in names]
        with self._faults(""):
            if not all(places):
                # `files` may be the mount point of its own disk.
                files = f"{self.url}/{FILES}"
                contained_paths.sync_file_system(files if os.path.isdir(files) else self.url)
            packs = sorted({place.pack for place in places if place})
            for pack in packs:
                with contained_paths.open_file(self.url, pack) as file:
                    os.fsync(file.fileno())
            if packs:
                with contained_paths.folder_of(self.url, packs[0]) as (folder, _):
                    os.fsync(folder)

    @contextmanager
    def staging(self, attempt: str) -> Iterator[Path]:
        """Create an empty folder on the same disk for the block, so that files can be renamed."""
        name = f"{STAGING}/{attempt}"
        for needed in (FILES, name):
            self._make_folder(needed)
        try:
            yield self.root / name
        finally:
            self.remove(name)
            with suppress(OSError), contained_paths.folder_of(self.url, STAGING) as (folder, last):
                os.rmdir(last, dir_fd=folder)  # Fails if another attempt uses the folder.

    def pack_folder(self, staging: Path) -> Path:  # noqa: ARG002
        """Return the folder where packs are written: their folder in the dataset."""
        self._make_folder(PACKS)
        return self.root / PACKS

    @retry_local
    def cut(self, name: str, size: int) -> None:
        """Cut a file after `size` bytes if it is longer. Ignore a name that does not exist."""
        self.before_change()
        with self._faults(name):
            seen = contained_paths.stat_entry(self.url, name)
            if seen and stat.S_ISREG(seen.st_mode) and seen.st_size > size:
                with contained_paths.folder_of(self.url, name) as (folder, last):
                    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
                    with contained_paths.closing(os.open(last, flags, dir_fd=folder)) as file:
                        os.ftruncate(file, size)

    def leftovers(self) -> Iterator[str]:
        """Yield the names of files that are being written, or whose writer died."""
        for folder, folders, files in os.walk(self.root):
            if folder == str(self.root):
                # The files in `files` are compared with the ledger instead.
                folders[:] = [name for name in folders if name.startswith(".") or name == PACKS]
            for name in files:
                if _TEMPORARY.fullmatch(name):
                    yield os.path.relpath(os.path.join(folder, name), self.root)

    @property
    def is_full(self) -> bool:
        """Return whether the disk has no free space."""
        return not has_room(self.root)

    @retry_local
    def _make_folder(self, name: str) -> None:
        with self._faults(name):
            os.close(contained_paths.open_folder(self.url, name, make=True))

    @retry_local
    def _seen(self, name: str) -> os.stat_result | None:
        """Return the status of a name; None if it does not exist."""
        with self._faults(name):
            return contained_paths.stat_entry(self.url, name)

    @retry_local
    def _list(self, folder: str) -> list[tuple[str, int]]:
        """Return the names in a folder, each with its type as in `stat`."""
        with self._faults(folder):
            try:
                descriptor = contained_paths.open_folder(self.url, folder)
            except FileNotFoundError:
                return []
            with contained_paths.closing(descriptor), os.scandir(descriptor) as entries:
                return [(entry.name, _type_of(entry)) for entry in entries]

    @contextmanager
    def _faults(self, name: str) -> Iterator[None]:
        """Raise StoreError instead of OSError in the block."""
        try:
            yield
        except OSError as error:
            raise store_fault(self.url_of(name), error) from error


def has_room(folder: Path, needed: int = _ROOM_BYTES) -> bool:
    """Return whether the file system of a folder has `needed` bytes of free space."""
    try:
        return shutil.disk_usage(folder).free >= needed
    except OSError:
        return True  # Another call reports this error.


def remove_folder(folder: Path | str) -> None:
    """Remove a folder and its content, or a link. Ignore a path that does not exist."""
    # Usually the path does not exist. This test is four times as fast as an exception.
    if not os.path.lexists(folder):
        return
    if os.path.islink(folder) or not os.path.isdir(folder):
        os.unlink(folder)
        return
    contained_paths.remove_tree(os.fspath(folder))


def _type_of(entry: os.DirEntry[str]) -> int:
    if entry.is_symlink():
        return stat.S_IFLNK
    return stat.S_IFDIR if entry.is_dir(follow_symlinks=False) else stat.S_IFREG


def _move(folder: Path, above: int, name: str) -> None:
    """Move a folder into an open folder, and replace at most an empty folder."""
    try:
        os.rename(folder, name, dst_dir_fd=above)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        # `files` may be the mount point of its own disk. A later run removes an incomplete copy,
        # because no record names it.
        copied = contained_paths.temporary_name(name)
        shutil.copytree(folder, f"/proc/self/fd/{above}/{copied}")
        try:
            os.rename(copied, name, src_dir_fd=above, dst_dir_fd=above)
        except OSError:
            shutil.rmtree(copied, ignore_errors=True, dir_fd=above)
            raise
        remove_folder(folder)
