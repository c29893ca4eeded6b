"""Configures how a worker's allocator handles memory that a step has freed."""

import ctypes
import os
import sys

# Constants of glibc's mallopt(3). musl and macOS have no `mallopt`, so nothing changes there.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# The largest values that glibc itself sets, after a process has freed an array of 32 MiB.
_MMAP_BYTES, _KEPT_BYTES = 32 * 2**20, 64 * 2**20
_USER_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")
# Loaded at import time: after a fork, a thread that no longer exists may hold the loader's lock.
_mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None


def keep_freed_memory() -> None:
    """Make this process reuse the memory of freed arrays of up to 32 MiB for its next arrays.

    By default, glibc adapts its thresholds to the size of the freed arrays. That is too little for
    a step that uses several arrays at a time. Their memory returns to the kernel, and the kernel
    fills the pages of the next arrays with zeros. This took a third of the time of spectrograms in
    numpy. With this function, the process keeps up to 64 MiB at the end of each heap, and all free
    memory between living objects. It has no effect if the user has set glibc's own variables.
    """
    tuned = "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if _mallopt and not tuned and not any(name in os.environ for name in _USER_VARIABLES):
        _mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        _mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
