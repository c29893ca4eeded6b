"""What the kernel knows of processes: who descends from whom, and their end.

All of it is Linux; elsewhere the functions do less, and say so.
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
# Now: in a fork, to look a library up may wait for a thread that is not in it.
_libc = ctypes.CDLL(None) if _LINUX else None
_PAUSE_LOOKS, _PAUSE_SECONDS = 20, 0.002


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies; elsewhere than on Linux, nothing.

    The parent may have died before: then this process ends here.
    """
    if _libc:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans(adopt: bool = True) -> None:
    """Become the parent of descendants whose own parent dies, so that none escapes unseen."""
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
    """Yield the pids of all processes that descend from one."""
    for child in children(pid):
        yield child
        yield from descendants(child)


def pause(pid: int) -> bool:
    """Stop a process where it stands; False if it is no more."""
    _signal(pid, signal.SIGSTOP)
    for _ in range(_PAUSE_LOOKS):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        if state in "TtZX":
            return state in "Tt"
        time.sleep(_PAUSE_SECONDS)
    return False


def resume(pid: int) -> None:
    """Let a stopped process go on."""
    _signal(pid, signal.SIGCONT)


def kill_tree(pid: int) -> None:
    """Kill a process and all that it started."""
    # Stopped first, it can start no more while the others are looked for.
    pause(pid)
    for descendant in list(descendants(pid)):
        _signal(descendant, signal.SIGKILL)
    _signal(pid, signal.SIGKILL)


def kill_descendants(pid: int, spare: frozenset[int] = frozenset()) -> None:
    """Kill what descends from a process, but not those of its children that are to be spared."""
    for child in children(pid):
        if child not in spare:
            kill_tree(child)


def reap(pid: int) -> None:
    """Take note of a dead child that nobody else waits for."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _signal(pid: int, number: signal.Signals) -> None:
    if pid <= 0:
        raise ValueError(f"{pid} is no process: a signal to it would be one to our own group")
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
