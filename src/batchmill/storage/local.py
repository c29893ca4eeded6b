"""A folder of this machine, or of a file system that machines share."""

import errno
import os
import re
import shutil
import stat
import subprocess
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import pyarrow as pa

from batchmill.errors import StoreError
from batchmill.storage.fingerprints import content_of
from batchmill.storage.retries import retry_local
from batchmill.storage.store import FILES, NO_ROOM

_TEMPORARY = re.compile(r"\..+\.part-[0-9a-f]{32}")
STAGING = ".batchmill/staging"
# With less than this, no file of any size can be counted on to be written whole.
_ROOM_BYTES = 2**20
# What a busy or remote file system says when the next try may be answered otherwise.
_PASSING = {errno.EIO, errno.EAGAIN, errno.EBUSY, errno.ESTALE, errno.ETIMEDOUT, errno.EINTR}
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
_NO_RIGHT = {errno.EACCES, errno.EPERM, errno.EROFS}


class LocalStore:
    """A store whose names are paths below one folder.

    A file is written under a temporary name, brought to the disk, then renamed: a power cut leaves
    the old one or the new one.
    """

    threads = 1

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.url = os.fspath(root)
        self.root = Path(root)

    def url_of(self, name: str) -> str:
        """Return the path of `name`."""
        return str(self.root / name)

    def exists(self, name: str) -> bool:
        """Tell whether there is a file of this name."""
        return os.path.exists(self.url_of(name))

    @retry_local
    def names(self, folder: str) -> list[str]:
        """Return the names in a folder in sorted order, without what is being written."""
        try:
            found = os.listdir(self.url_of(folder))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _fault(self.url_of(folder), error) from error
        return sorted(name for name in found if not _TEMPORARY.fullmatch(name))

    def files(self, folder: str) -> Iterator[str]:
        """Yield the names of all files in a folder and its folders, and of empty folders."""
        try:
            entries = sorted(os.scandir(self.url_of(folder)), key=lambda entry: entry.name)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _fault(self.url_of(folder), error) from error
        if not entries:
            yield folder
        for entry in entries:
            name = f"{folder}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                yield from self.files(name)
            else:
                yield name

    def sizes(self, names: Sequence[str]) -> Iterable[int | None]:
        """Return the size of each file in bytes, None where there is none."""
        prefix = f"{self.root}/"
        for name in names:
            try:
                seen = os.lstat(prefix + name)
                yield seen.st_size if stat.S_ISREG(seen.st_mode) else None
            except (FileNotFoundError, NotADirectoryError):
                yield None
            except OSError as error:
                raise _fault(prefix + name, error) from error

    def content_of(self, name: str) -> str:
        """Read a file and hash its content."""
        try:
            return content_of(self.url_of(name))
        except OSError as error:
            raise _fault(self.url_of(name), error) from error

    @retry_local
    def read(self, name: str) -> bytes:
        """Return a file's content."""
        try:
            return Path(self.url_of(name)).read_bytes()
        except OSError as error:
            raise _fault(self.url_of(name), error) from error

    @retry_local
    def open(self, name: str) -> pa.NativeFile:
        """Map a file into memory."""
        try:
            return pa.memory_map(self.url_of(name))
        except OSError as error:
            raise _fault(self.url_of(name), error) from error

    def write(self, name: str, data: bytes) -> None:
        """Write a whole file; it takes the place of an earlier one."""
        self.write_atomic(name, lambda file: file.write(data))

    @retry_local
    def write_atomic(self, name: str, writer: Callable[[BinaryIO], object]) -> None:
        """Have `writer` write a file, which takes the place of `name` when it is whole."""
        target = self.root / name
        temporary = _temporary(target)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("xb") as file:
                writer(file)
                file.flush()
                os.fsync(file.fileno())
            # Rename is atomic only within one filesystem: hence the temporary name beside it.
            temporary.replace(target)
        except OSError as error:
            raise _fault(str(target), error) from error
        finally:
            with suppress(OSError):  # After the rename it is gone.
                temporary.unlink()

    @retry_local
    def create(self, name: str, data: bytes) -> bool:
        """Write a file that is not there yet; False if it is. Of several, one succeeds."""
        target = self.root / name
        temporary = _temporary(target)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _fault(str(target.parent), error) from error
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            _link(temporary, target)
        except FileExistsError:
            return False
        except FileNotFoundError:
            # Who was quicker has swept up what others were writing.
            return False
        except OSError as error:
            raise _fault(str(target), error) from error
        finally:
            with suppress(OSError):
                temporary.unlink()
        return True

    @retry_local
    def delete(self, name: str) -> None:
        """Remove a file, and the folders of outputs that this leaves empty."""
        try:
            os.unlink(self.url_of(name))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            pass  # There is no file of this name, whatever else there may be.
        except OSError as error:
            raise _fault(self.url_of(name), error) from error
        if name.startswith(f"{FILES}/"):
            with suppress(OSError):  # There is something else in it.
                for folder in PurePosixPath(name).parents[:-2]:
                    os.rmdir(self.root / folder)

    def remove(self, name: str) -> None:
        """Remove a file, or a folder and what is in it; what is not there is no fault."""
        place = self.url_of(name)
        if os.path.isdir(place) and not os.path.islink(place):
            remove_folder(place)
        else:
            self.delete(name)

    @retry_local
    def put_folder(self, folder: Path, name: str, files: Sequence[str]) -> None:
        """Move the `files` of a folder on the same disk to below `name`."""
        try:
            self._put_folder(folder, f"{self.url}/{name}", files)
        except OSError as error:
            raise _fault(self.url_of(name), error) from error

    def _put_folder(self, folder: Path, target: str, files: Sequence[str]) -> None:
        try:
            os.rename(folder, target)
            return
        except OSError:
            if not os.path.lexists(target):
                raise
        # An earlier run's files are there. File by file, so that at no moment one is missing.
        try:
            _replace_files(folder, Path(target), files)
        except (FileExistsError, IsADirectoryError, NotADirectoryError):
            # What was a file is a folder now, or the other way round.
            remaining = [name for name in files if not os.path.lexists(folder / name)]
            _replace_files(Path(target), folder, remaining)
            remove_folder(target)
            os.rename(folder, target)
        remove_folder(folder)

    @contextmanager
    def staging(self, attempt: str) -> Iterator[Path]:
        """Give an empty folder on the same disk, from which a rename is enough."""
        folder = self.root / STAGING / attempt
        try:
            (self.root / FILES).mkdir(parents=True, exist_ok=True)
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _fault(str(folder), error) from error
        try:
            yield folder
        finally:
            remove_folder(folder)
            with suppress(OSError):  # Another attempt has its own there.
                folder.parent.rmdir()

    def leftovers(self) -> Iterator[str]:
        """Yield the names of files that are being written, or were when their writer died."""
        for folder, folders, files in os.walk(self.root):
            if folder == str(self.root):
                folders[:] = [name for name in folders if name.startswith(".")]
            for name in files:
                if _TEMPORARY.fullmatch(name):
                    yield os.path.relpath(os.path.join(folder, name), self.root)

    @property
    def is_full(self) -> bool:
        """Whether there is no room left to write to."""
        return not has_room(self.root)


def has_room(folder: Path) -> bool:
    """Tell whether a file of any size can be written to a folder's file system."""
    try:
        space = os.statvfs(folder)
    except OSError:
        return True  # That is another trouble.
    return space.f_bavail * space.f_frsize >= _ROOM_BYTES


def remove_folder(folder: Path | str) -> None:
    """Remove a folder and what is in it, or a link to one; what is not there is no fault."""
    # As a rule there is none, and to ask takes a quarter of an exception's time.
    if not os.path.lexists(folder):
        return
    if os.path.islink(folder) or not os.path.isdir(folder):
        os.unlink(folder)
        return
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:  # Folders in folders in folders.
        subprocess.run(["rm", "-rf", "--", os.fspath(folder)], check=False)  # noqa: S607


def _replace_files(source: Path, target: Path, files: Iterable[str]) -> None:
    for name in files:
        # In a second try, those that the first has moved are there.
        if os.path.lexists(source / name) or not os.path.lexists(target / name):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(source / name, target / name)


def _temporary(target: Path) -> Path:
    return target.with_name(f".{target.name}.part-{uuid.uuid4().hex}")


def _link(temporary: Path, target: Path) -> None:
    """Give a whole file its name. Raises FileExistsError if the name is taken."""
    try:
        os.link(temporary, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK):
            raise
        # Some shared file systems have no links. The name is taken at once, its content follows.
        with target.open("xb") as file:
            file.write(temporary.read_bytes())


def _fault(place: str, error: OSError) -> StoreError:
    return StoreError(
        place,
        _reason(error),
        passing=error.errno in _PASSING,
        general=error.errno in _NO_ROOM or error.errno in _NO_RIGHT,
    )


def _reason(error: OSError) -> str:
    text = error.strerror or str(error)
    if error.errno in _NO_ROOM:
        return NO_ROOM
    if error.errno in _NO_RIGHT:
        return f"{text}. Give yourself the right to write there, or choose another folder."
    return f"{text}."
