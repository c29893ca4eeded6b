"""Temporary folders on this machine. Later calls remove the folders of killed processes."""

import fcntl
import os
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from batchmill.core.storage.contained_paths import closing
from batchmill.core.storage.local import remove_folder
from batchmill.errors import StoreError

FOR_FILES, FOR_SOCKETS = "batchmill-scratch-", "batchmill-mp-"
_HIDDEN_SECONDS = 3600


@contextmanager
def scratch_folder(prefix: str = FOR_FILES, base: Path | None = None) -> Iterator[Path]:
    """Create an empty folder, and remove it after the block.

    Args:
        prefix: The start of the folder's name.
        base: The folder to create it in; the system's temporary folder by default. Folders that
            killed processes left there are removed.

    Raises:
        StoreError: The folder cannot be created.
    """
    folder, descriptor = lock_scratch_folder(prefix, base)
    with closing(descriptor):
        try:
            yield folder
        finally:
            remove_folder(folder)


def short_base(longest: int) -> Path:
    """Return the system's temporary folder, or /tmp if its path has more than `longest` bytes.

    The path of a socket has at most 107 bytes.
    """
    usual = tempfile.gettempdir()
    return Path(usual if len(os.fsencode(usual)) <= longest else os.path.join(os.sep, "tmp"))


def lock_scratch_folder(prefix: str = FOR_FILES, base: Path | None = None) -> tuple[Path, int]:
    """Create an empty folder, and return it with a file descriptor that locks it.

    Other processes do not remove the folder while it is locked. The lock ends when the last copy of
    the descriptor is closed. The kernel closes the descriptors of a killed process.

    Raises:
        StoreError: The folder cannot be created.
    """
    base = base or Path(tempfile.gettempdir())
    _sweep(base, prefix)
    folder = base / f"{prefix}{uuid.uuid4().hex[:8]}"
    hidden = base / f".{folder.name}"
    try:
        hidden.mkdir(mode=0o700)
        descriptor = os.open(hidden, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        hidden.rename(folder)  # Other processes find only the locked folder.
    except OSError as error:
        raise StoreError(
            str(base), f"{error.strerror}. Set TMPDIR to another folder.", general=True
        ) from error
    return folder, descriptor


def _sweep(base: Path, prefix: str) -> None:
    for entry in base.glob(f".{prefix}*"):
        # A process was killed before it renamed its folder, which is still empty.
        with suppress(OSError):
            if time.time() - entry.stat().st_mtime > _HIDDEN_SECONDS:
                entry.rmdir()
    for entry in base.glob(f"{prefix}*"):
        with suppress(OSError):  # The folder is in use, or another process removed it.
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            with closing(os.open(entry, flags)) as descriptor:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_folder(entry)
