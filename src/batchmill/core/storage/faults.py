"""Turn errors of the operating system into errors that say what to do."""

import errno

from batchmill.core.storage.store import NO_ROOM
from batchmill.errors import StoreError

# Errors of a busy or remote file system. A retry may succeed.
_PASSING = {errno.EIO, errno.EAGAIN, errno.EBUSY, errno.ESTALE, errno.ETIMEDOUT, errno.EINTR}
# The errors of a full disk.
FULL = {errno.ENOSPC, errno.EDQUOT}
_NO_RIGHT = {errno.EACCES, errno.EPERM, errno.EROFS}


def store_fault(place: str, error: OSError) -> StoreError:
    """Return the error of a store whose file system failed.

    Args:
        place: The path of the file or folder.
        error: The error of the operating system.
    """
    is_link = error.errno == errno.ELOOP
    return StoreError(
        str(error.filename or place) if is_link else place,
        _reason(error),
        passing=error.errno in _PASSING,
        general=is_link or error.errno in FULL or error.errno in _NO_RIGHT,
    )


def _reason(error: OSError) -> str:
    text = error.strerror or str(error)
    if error.errno == errno.ELOOP:
        return (
            "is a link. A dataset contains no links, because they can lead outside. "
            "Replace the link with a copy of its target."
        )
    if error.errno in FULL:
        return NO_ROOM
    if error.errno in _NO_RIGHT:
        return f"{text}. Change the permissions, or choose another folder."
    return f"{text}."
