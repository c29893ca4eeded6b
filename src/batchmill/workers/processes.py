"""Finds, suspends, kills and reaps processes.

`/proc` and `prctl` exist only on Linux. On other systems, `children` finds no processes, and
`adopt_orphans` has no effect.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LINUX = sys.platform == "linux"
# Loaded at import time: after a fork, a thread that no longer exists may hold the loader's lock.
_libc = ctypes.CDLL(None) if _LINUX else None
_PAUSE_CHECKS, _PAUSE_SECONDS = 20, 0.002


def end_with_parent(parent: int) -> None:
    """Make the kernel kill this process when its parent dies (on Linux only).

    The process ends at once if the parent has already died.
    """
    if _libc:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans(adopt: bool = True) -> None:
    """Become the parent of descendants whose parent dies, so that `descendants` finds them."""
    if _libc:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, int(adopt))


def children(pid: int) -> list[int]:
    """Return the pids of a process's children."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    found: list[int] = []
    for thread in threads:
        try:
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
        except OSError:
            continue  # The thread has just ended.
    return found


def descendants(pid: int) -> Iterator[int]:
    """Yield the pids of a process's children, their children, and so on."""
    for child in children(pid):
        yield child
        yield from descendants(child)


def pause(pid: int) -> bool:
    """Suspend a process. Return False if it has ended, or is not suspended after 40 ms."""
    _signal(pid, signal.SIGSTOP)
    for _ in range(_PAUSE_CHECKS):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        if state in "TtZX":
            return state in "Tt"
        time.sleep(_PAUSE_SECONDS)
    return False


def resume(pid: int) -> None:
    """Continue a suspended process."""
    _signal(pid, signal.SIGCONT)


def kill_tree(pid: int) -> None:
    """Kill a process and its descendants."""
    # A suspended process cannot start other processes while its descendants are listed.
    pause(pid)
    for descendant in list(descendants(pid)):
        _signal(descendant, signal.SIGKILL)
    _signal(pid, signal.SIGKILL)


def kill_descendants(pid: int, spare: frozenset[int] = frozenset()) -> None:
    """Kill the descendants of a process, except the children in `spare` and their descendants."""
    for child in children(pid):
        if child not in spare:
            kill_tree(child)


def end_children() -> None:
    """Kill the descendants of this process, and wait until they have ended.

    Orphans must have become children of this process: `adopt_orphans`.
    """
    while _has_children():
        kill_descendants(os.getpid())
        with suppress(ChildProcessError):
            os.waitpid(-1, 0)


def _has_children() -> bool:
    """Return whether this process has a child, dead or alive. This takes a microsecond."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def reap(pid: int) -> None:
    """Remove a dead child from the kernel's process table, unless that has already happened."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def has_ended(pid: int) -> bool:
    """Return whether a child has ended, without removing it from the kernel's process table."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _signal(pid: int, number: signal.Signals) -> None:
    if pid <= 0:
        raise ValueError(f"{pid} is not a process id: the signal would go to a process group")
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
