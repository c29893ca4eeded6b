"""Kill a run immediately before the n-th change of a dataset."""

import mmap
import os
import signal
import struct
import sys
import threading
import traceback
from collections.abc import Callable

from batchmill.core.storage import remote, transfer

_CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.truncate"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
NEVER = -1


class CrashPoints:
    """Count the changes to files below a folder or URL, also in processes that are forked later.

    The whole run is killed immediately before change number `at`.
    """

    def __init__(self, place: str, at: int = NEVER) -> None:
        self._prefix = place
        self._at = at
        self._count = mmap.mmap(-1, 8)
        self._main = 0

    @property
    def count(self) -> int:
        """The number of changes so far."""
        return struct.unpack("q", self._count[:])[0]

    def watch(self) -> None:
        """Count from now on, in this process and its children, until the process ends."""
        self._main = os.getpid()
        sys.addaudithook(self._hook)
        fsync = os.fsync
        os.fsync = lambda descriptor: (self.reach(), fsync(descriptor))
        for name in ("write", "create", "delete", "upload"):
            setattr(remote, name, self._reaching(getattr(remote, name)))
        transfer.upload = self._reaching(transfer.upload)  # Workers do not call remote.upload.

    def reach(self) -> None:
        """Count a change that follows immediately."""
        count = self.count + 1
        self._count[:] = struct.pack("q", count)
        if count == self._at:
            os.kill(self._main, signal.SIGKILL)
            threading.Event().wait()  # In a worker: the kernel kills it with the main process.

    def _reaching(self, function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            if any(self._is_here(argument) for argument in arguments):
                self.reach()
            return function(*arguments)

        return call

    def _hook(self, event: str, arguments: tuple) -> None:
        is_change = event in _CHANGES or (event == "open" and arguments[2] & _WRITING)
        if is_change and self._is_here(arguments[0]):
            self.reach()

    def _is_here(self, path: object) -> bool:
        return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(self._prefix)


def in_child(function) -> int:
    """Call a function in a forked process; return its exit code after its children ended."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            function()
            os._exit(0)
        except BaseException:  # noqa: BLE001  # After any error this process ends here.
            traceback.print_exc()
            os._exit(1)
    os.close(writer)
    os.read(reader, 1)  # Returns when the last process that has the writing end has ended.
    os.close(reader)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
