"""What becomes of memory that a step has freed."""

import ctypes
import os
import sys

# mallopt(3). Its numbers are glibc's; who has no `mallopt`, as musl and macOS, is left alone.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# What glibc itself comes to once a process has freed an array of 32 MiB, and no further.
_MMAP_BYTES, _KEPT_BYTES = 32 * 2**20, 64 * 2**20
_OF_THE_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")
# Now: in a fork, to look a function up may wait for a thread that is not in it.
_mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None


def keep_freed_memory() -> None:
    """Have this process keep what it has freed, in arrays up to 32 MiB, for its next arrays.

    Left to itself, glibc learns from the arrays that are freed how much to keep; where a step has
    several at a time, that is too little: they go back to the kernel, and the next ones are fetched
    anew, page by page, each of them zeroed. It took a third of the time of spectrograms by numpy.
    Kept are 64 MiB at the end of each heap, and what lies between living objects. Does nothing
    where the user has set glibc's own variables for it.
    """
    tuned = "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if _mallopt and not tuned and not any(name in os.environ for name in _OF_THE_USER):
        _mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        _mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
