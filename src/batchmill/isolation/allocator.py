"""What becomes of memory that a step has freed."""

import ctypes
import os
import sys

# mallopt(3). Its numbers are glibc's; who has no `mallopt`, as musl and macOS, is left alone.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# What glibc itself comes to, once a process has freed an array of 32 MiB, and no further: arrays
# of up to half of it are kept.
_KEPT_BYTES = 64 * 2**20
# Of a limit for what an input uses, so small a part may be what others have left.
_KEPT_SHARE = 1 / 16
_OF_THE_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")
# Now: in a fork, to look a function up may wait for a thread that is not in it.
_mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None


def keep_freed_memory(limit_bytes: int | None = None) -> None:
    """Have this process keep up to 64 MiB of what it has freed, and use that for its next arrays.

    As it starts, glibc gives every array of more than 128 KiB back to the kernel, and gets the next
    one anew, page by page, each of them zeroed: up to a third of the time of a step that computes
    in arrays of megabytes. With a limit for what an input uses, it is a sixteenth of that at most.
    Does nothing where the user has set glibc's own variables for it.
    """
    tuned = "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if not _mallopt or tuned or any(name in os.environ for name in _OF_THE_USER):
        return
    kept = _KEPT_BYTES
    if limit_bytes is not None:
        kept = min(kept, int(limit_bytes * _KEPT_SHARE))
    _mallopt(_M_MMAP_THRESHOLD, kept // 2)
    _mallopt(_M_TRIM_THRESHOLD, kept)
