"""Flags in shared memory. The shard's process uses them to control all its workers.

Create them before the workers are forked.
"""

import mmap
import os
import struct

_INDEX = struct.Struct("q")


class StartBarrier:
    """Makes workers wait until all workers and the watchdog have started."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()

    def open(self, workers: int) -> None:
        """Let this number of workers pass, and close the parent's side."""
        os.write(self._writer, b"." * workers)
        os.close(self._writer)
        os.close(self._reader)

    def wait(self) -> None:
        """Wait, in a worker, until the barrier is open."""
        os.read(self._reader, 1)
        os.close(self._writer)
        os.close(self._reader)


class DrainFlag:
    """Makes all workers finish their current input and begin no other input."""

    def __init__(self) -> None:
        self._flag = mmap.mmap(-1, 1)

    def set(self) -> None:
        """Set the flag for all workers."""
        self._flag[0] = 1

    def is_set(self) -> bool:
        """Return whether the flag is set."""
        return self._flag[0] == 1


class StopIndex:
    """The first index that no worker may begin. All workers see it."""

    def __init__(self, index: int) -> None:
        self._index = mmap.mmap(-1, _INDEX.size)
        self.set(index)

    def set(self, index: int) -> None:
        """Change the index. Workers still finish inputs that they have begun."""
        _INDEX.pack_into(self._index, 0, index)

    def excludes(self, index: int) -> bool:
        """Return whether this input must not begin."""
        return bool(_INDEX.unpack_from(self._index)[0] <= index)
