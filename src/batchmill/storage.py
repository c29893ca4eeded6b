"""The folder that a dataset lives in: whole files appear at once, or not at all."""

import errno
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import BinaryIO, ParamSpec, TypeVar

from batchmill.errors import StoreError

_TEMPORARY = ".part-"
# With less than this, no file of any size can be counted on to be written whole.
_ROOM_BYTES = 2**20
# What a busy or remote file system says when the next try may be answered otherwise.
_PASSING = {errno.EIO, errno.EAGAIN, errno.EBUSY, errno.ESTALE, errno.ETIMEDOUT, errno.EINTR}
NO_ROOM = (
    "No space left on device. Make room, and run the same command again: what is done stays done."
)
_PAUSES = (0.1, 0.5, 2.0, 5.0)

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def _persistent(method: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Try again, a few times, what fails for a reason that may pass."""

    @wraps(method)
    def again(*args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        for pause in _PAUSES:
            try:
                return method(*args, **kwargs)
            except StoreError as error:
                if getattr(error.__cause__, "errno", None) not in _PASSING:
                    raise
                time.sleep(pause)
        return method(*args, **kwargs)

    return again


class LocalStore:
    """Files below one folder, by names relative to it with `/` between their parts."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)

    def path(self, name: str) -> Path:
        """Return the place of `name` in the file system."""
        return self.root / name

    def write(self, name: str, data: bytes) -> None:
        """Write a whole file. Raises StoreError."""
        self.fill(name, lambda file: file.write(data))

    @_persistent
    def fill(self, name: str, writer: Callable[[BinaryIO], object]) -> None:
        """Have `writer` write a file, which takes the place of `name` when it is whole.

        The content is on the disk before the name is, so that a power cut leaves the old file or
        the new one. `writer` may be called again. Raises StoreError.
        """
        target = self.path(name)
        temporary = self._temporary(target)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("xb") as file:
                writer(file)
                file.flush()
                os.fsync(file.fileno())
            # Rename is atomic only within one filesystem: hence the temporary name beside it.
            temporary.replace(target)
        except OSError as error:
            raise StoreError(str(target), _reason(error)) from error
        finally:
            with suppress(OSError):  # After the rename it is gone.
                temporary.unlink()

    @_persistent
    def create(self, name: str, data: bytes) -> bool:
        """Write a file that is not there yet; False if it is. Of several, one succeeds.

        Raises StoreError.
        """
        target = self.path(name)
        temporary = self._temporary(target)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
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
            raise StoreError(str(target), _reason(error)) from error
        finally:
            with suppress(OSError):
                temporary.unlink()
        return True

    @_persistent
    def delete(self, name: str) -> None:
        """Remove a file; one that is not there is no fault. Raises StoreError."""
        try:
            self.path(name).unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(str(self.path(name)), _reason(error)) from error

    def leftovers(self) -> Iterator[str]:
        """Yield the names of files that are being written, or were when their writer died.

        Only who knows that nobody is writing may take them for the latter.
        """
        for folder, folders, files in os.walk(self.root):
            if folder == str(self.root):
                folders[:] = [name for name in folders if name.startswith(".")]
            for name in files:
                if _TEMPORARY in name and name.startswith("."):
                    yield os.path.relpath(os.path.join(folder, name), self.root)

    @_persistent
    def read(self, name: str) -> bytes:
        """Return a file's content. Raises StoreError."""
        try:
            return self.path(name).read_bytes()
        except OSError as error:
            raise StoreError(str(self.path(name)), _reason(error)) from error

    @property
    def is_full(self) -> bool:
        """Whether there is no room left to write to."""
        try:
            space = os.statvfs(self.root)
        except OSError:
            return False
        return space.f_bavail * space.f_frsize < _ROOM_BYTES

    def _temporary(self, target: Path) -> Path:
        return target.with_name(f".{target.name}{_TEMPORARY}{uuid.uuid4().hex}")

    def exists(self, name: str) -> bool:
        """Tell whether there is a file or folder of this name."""
        return self.path(name).exists()

    @_persistent
    def names(self, folder: str) -> list[str]:
        """Return the names in a folder in sorted order, without what is being written."""
        try:
            found = os.listdir(self.path(folder))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(str(self.path(folder)), _reason(error)) from error
        return sorted(name for name in found if _TEMPORARY not in name)


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


def _reason(error: OSError) -> str:
    text = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NO_ROOM
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{text}. Give yourself the right to write there, or choose another folder."
    return f"{text}."
