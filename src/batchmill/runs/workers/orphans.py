"""Ends the processes that steps have started if the process of their shard is killed.

    python orphans.py PID NAME=VALUE

waits for the death of a process, and then kills the processes that it has marked.

It kills each process whose environment has this variable, and each process that has the file VALUE
in memory open. It ends without killing when it reads a byte from its standard input. Each shard
starts this file as a script, so it imports as little as possible.
"""

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_VARIABLE = "BATCHMILL_SHARD_PROCESS"


@contextmanager
def ending_orphans() -> Iterator[None]:
    """Mark the processes that start during the block. If this process is killed, they end.

    The kernel ends the workers, but not the processes that their steps have started.
    """
    # Imported here, because the script needs neither.
    import subprocess
    import uuid

    mark = uuid.uuid4().hex
    # A forked process that executes no program keeps the environment from before the block. It
    # inherits this file instead.
    file = os.memfd_create(mark)
    watcher = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(os.getpid()), f"{_VARIABLE}={mark}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # A signal to the process group of the run must not end the watcher.
        start_new_session=True,
    )
    os.environ[_VARIABLE] = mark
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE, None)
        watcher.communicate(b".")  # Ends the watcher.
        os.close(file)


def _wait_for_death(pid: int) -> bool:
    """Wait for the end of a process, or for a byte. Return True if the process ended."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    ready, _, _ = select.select([process, sys.stdin.fileno()], [], [])
    # The kernel closes the files of a killed process before it reports its end.
    return process in ready or not os.read(sys.stdin.fileno(), 1)


def _kill_marked(mark: bytes) -> None:
    """Kill all processes with a mark in their environment, also those that start meanwhile."""
    while pids := [int(name) for name in os.listdir("/proc") if _is_marked(name, mark)]:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _is_marked(name: str, mark: bytes) -> bool:
    try:
        with open(f"/proc/{name}/environ", "rb") as file:
            if mark in file.read().split(b"\0"):
                return True
        files = [f"/proc/{name}/fd/{number}" for number in os.listdir(f"/proc/{name}/fd")]
    except OSError:
        return False  # This is not a process, it has ended, or it belongs to another user.
    return f"/memfd:{mark.decode().partition('=')[2]} (deleted)" in map(_target_of, files)


def _target_of(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""  # The file has just been closed.


if __name__ == "__main__" and _wait_for_death(int(sys.argv[1])):
    _kill_marked(sys.argv[2].encode())
