"""Finds, suspends, kills and reaps processes."""

import ctypes
import faulthandler
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# Loaded at import time: after a fork, a thread that no longer exists may hold the loader's lock.
_libc = ctypes.CDLL(None)
_PAUSE_CHECKS, _PAUSE_SECONDS = 20, 0.002


def end_with_parent(parent: int) -> None:
    """Make the kernel kill this process when its parent dies.

    The process ends at once if the parent has already died.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


@contextmanager
def end_after(seconds: float | None) -> Iterator[None]:
    """Write the stack and end this process if the block takes longer than `seconds`.

    The timer is a thread in C. It ends the process even if the block never releases the
    interpreter's lock.
    """
    if seconds is None:
        yield
        return
    faulthandler.dump_traceback_later(seconds, exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def adopt_orphans(adopt: bool = True) -> None:
    """Become the parent of descendants whose parent dies, so that `descendants` finds them."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, int(adopt))


def children(pid: int) -> list[int]:
    """Return the pids of a process's children."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    pids: list[int] = []
    for thread in threads:
        with suppress(OSError):  # The thread may have just ended.
            pids += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return pids


def descendants(pid: int) -> Iterator[int]:
    """Yield the pids of a process's children, their children, and so on."""
    for child in children(pid):
        yield child
        yield from descendants(child)


class ChildProcess:
    """A handle to a child process of this process, or of `parent`.

    Its signals never reach another process: the system may give the id of a process that has ended
    to a new one. If the process with this id is not a child of `parent`, all methods do nothing.
    Without pidfds, the parent is checked only once.

    Args:
        pid: The id of the process.
        parent: The id of its parent. By default, this process.
    """

    def __init__(self, pid: int, parent: int | None = None) -> None:
        if pid <= 0:
            raise ValueError(f"{pid} is not a process id: the signal would go to a process group")
        self.pid = pid
        self._descriptor: int | None = None
        with suppress(AttributeError, OSError):
            self._descriptor = os.pidfd_open(pid)
        # The check comes second: before, another process could get the id after it.
        fields = _stat_of(pid)
        self._is_child = bool(fields) and int(fields[1]) == (parent or os.getpid())

    def close(self) -> None:
        """Close the handle. The process continues."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor, self._is_child = None, False

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if not self._is_child:
            return
        with suppress(ProcessLookupError, PermissionError):
            if self._descriptor is None:
                os.kill(self.pid, number)
            else:
                signal.pidfd_send_signal(self._descriptor, number)

    def pause(self) -> bool:
        """Suspend it. Return False if it has ended, or is not suspended after 40 ms."""
        self.send(signal.SIGSTOP)
        for _ in range(_PAUSE_CHECKS if self._is_child else 0):
            fields = _stat_of(self.pid)
            if not fields or fields[0] in "TtZX":
                return bool(fields) and fields[0] in "Tt"
            time.sleep(_PAUSE_SECONDS)
        return False

    def resume(self) -> None:
        """Continue the suspended process."""
        self.send(signal.SIGCONT)

    def kill_tree(self) -> None:
        """Kill the process and its descendants."""
        if not self._is_child:
            return
        # A suspended process cannot start other processes while its descendants are listed.
        self.pause()
        for descendant in list(_open_descendants(self.pid)):
            descendant.send(signal.SIGKILL)
            descendant.close()
        self.send(signal.SIGKILL)


def _open_descendants(pid: int) -> Iterator[ChildProcess]:
    for child in children(pid):
        yield ChildProcess(child, parent=pid)
        yield from _open_descendants(child)


def _stat_of(pid: int) -> list[str]:
    """Return the fields of `/proc/PID/stat` after the name; empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def kill_tree(pid: int) -> None:
    """Kill a child of this process, and its descendants."""
    child = ChildProcess(pid)
    child.kill_tree()
    child.close()


def kill_descendants(spare: frozenset[int] = frozenset()) -> None:
    """Kill the descendants of this process, except those in `spare` and their descendants."""
    for child in children(os.getpid()):
        if child not in spare:
            kill_tree(child)


def end_children(spare: frozenset[int] = frozenset()) -> None:
    """Kill the descendants of this process, except those in `spare`, and wait for their ends.

    Orphans must have become children of this process: `adopt_orphans`.
    """
    while has_children() and (left := set(children(os.getpid())) - spare):
        for pid in left:
            kill_tree(pid)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def has_children() -> bool:
    """Return whether this process has a child, dead or alive. This takes a microsecond."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def has_ended(pid: int) -> bool:
    """Return whether a child has ended, without removing it from the kernel's process table."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def ends_within(pid: int, seconds: float) -> bool:
    """Wait for the end of a child, at most for this time. Return whether it has ended."""
    deadline = time.monotonic() + seconds
    while not has_ended(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_SECONDS)
    return True
