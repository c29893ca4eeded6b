"""Waits for the death of a process, and then kills the processes that it has marked.

    python orphan_watcher.py PID NAME=VALUE

It kills each process whose environment has this variable. It ends without killing when it reads a
byte from its standard input. Each shard starts this file as a script, so it imports as little as
possible.
"""

import os
import select
import signal
import sys


def wait_for_death(pid: int) -> bool:
    """Wait for the end of a process, or for a byte. Return True if the process ended."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    ready, _, _ = select.select([process, sys.stdin.fileno()], [], [])
    # The kernel closes the files of a killed process before it reports its end.
    return process in ready or not os.read(sys.stdin.fileno(), 1)


def kill_marked(mark: bytes) -> None:
    """Kill all processes with a mark in their environment, also those that start meanwhile."""
    while pids := [int(name) for name in os.listdir("/proc") if _is_marked(name, mark)]:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def _is_marked(name: str, mark: bytes) -> bool:
    try:
        with open(f"/proc/{name}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:
        return False  # This is not a process, it has ended, or it belongs to another user.


if __name__ == "__main__" and wait_for_death(int(sys.argv[1])):
    kill_marked(sys.argv[2].encode())
