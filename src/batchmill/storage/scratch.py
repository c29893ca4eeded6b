"""Temporary folders of this machine, which do not outlive their process for long."""

import fcntl
import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from batchmill.errors import StoreError
from batchmill.storage.local import remove_folder

FOR_FILES, FOR_SOCKETS = "batchmill-scratch-", "batchmill-mp-"


@contextmanager
def scratch_folder(prefix: str = FOR_FILES, base: Path | None = None) -> Iterator[Path]:
    """Give an empty folder, gone after the block; in `base`, or where TMPDIR says.

    What others have left there that were killed is removed, too. Raises StoreError.
    """
    folder, descriptor = lock_scratch_folder(prefix, base)
    try:
        yield folder
    finally:
        remove_folder(folder)
        os.close(descriptor)


def short_base(longest: int) -> Path:
    """Return where TMPDIR says, or /tmp if that has more bytes: paths of sockets have 107."""
    usual = tempfile.gettempdir()
    return Path(usual if len(os.fsencode(usual)) <= longest else os.path.join(os.sep, "tmp"))


def lock_scratch_folder(prefix: str = FOR_FILES, base: Path | None = None) -> tuple[Path, int]:
    """Make an empty folder, and return it with the descriptor that keeps it from being swept up.

    The kernel closes the descriptors of what is killed, and with the last one gives up the lock.
    Raises StoreError.
    """
    base = base or Path(tempfile.gettempdir())
    _sweep(base, prefix)
    folder = base / f"{prefix}{uuid.uuid4().hex[:8]}"
    hidden = base / f".{folder.name}"
    try:
        hidden.mkdir(mode=0o700)
        descriptor = os.open(hidden, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        hidden.rename(folder)  # Only now can it be found, and it is locked.
    except OSError as error:
        raise StoreError(
            str(base), f"{error.strerror}. Name another temporary folder with TMPDIR.", general=True
        ) from error
    return folder, descriptor


def _sweep(base: Path, prefix: str) -> None:
    for entry in base.glob(f"{prefix}*"):
        with suppress(OSError):  # Somebody is there, or was quicker.
            descriptor = os.open(entry, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_folder(entry)
            finally:
                os.close(descriptor)
