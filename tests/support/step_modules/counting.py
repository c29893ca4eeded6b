"""Count a job's system calls, in this process and in its forks.

Python's profiler sees each call from Python code to a C function, also under another name. Forks
and new threads inherit it. It needs no privilege, and replaces no function.

A comparison with strace for 200 inputs found the same opened files, reads, renames, seeks, and
created and listed folders. Calls inside C code are missing: the `fstat` of each `open` (for text
also `lseek` and `ioctl`), and pyarrow's files.
"""

import io
import os
import sys
import threading
from collections import Counter
from fractions import Fraction
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import NamedTuple
from unittest import mock

from batchmill.runs.workers.ring_buffer import RingBuffer
from batchmill.runs.workers.worker_channel import anonymous_file

WATCHED = {
    io.open: "open",
    io.open_code: "open",
    os.open: "open",
    os.scandir: "list",
    os.listdir: "list",
    os.stat: "stat",
    os.lstat: "stat",
    os.fstat: "fstat",
    os.access: "stat",
    os.statvfs: "statvfs",
    os.readlink: "readlink",
    os.rename: "rename",
    os.replace: "rename",
    os.link: "link",
    os.symlink: "link",
    os.mkdir: "mkdir",
    os.rmdir: "rmdir",
    os.unlink: "unlink",
    os.remove: "unlink",
    os.fsync: "fsync",
    os.getcwd: "getcwd",
    os.lseek: "lseek",
    os.ftruncate: "truncate",
    os.read: "read",
    os.pread: "read",
}
# The calls of these functions do not depend on the number of inputs: they run at intervals, or look
# up the libraries that the process has imported since the last run.
_OTHERS = (
    "core.user_step.libraries.",
    "runs.workers.memory_usage.",
    "runs.workers.processes.",
    "runs.workers.worker_channel.bound_log",
)
# The DataLoader's last message to its workers. A worker may end before it arrives.
_GOODBYE = ForkingPickler.dumps(None)


class Noted(NamedTuple):
    """A kind of call, the function of batchmill that made it, and whether it was in a fork."""

    forked: bool
    what: str
    place: str

    def __str__(self):
        return f"{self.what}, by {self.place} in {'a worker' if self.forked else 'its process'}"


class Tally:
    """Amounts that a process and its forks record. Each record is one atomic write."""

    def __init__(self):
        self._file = anonymous_file("batchmill-tally")
        self._pid = os.getpid()

    def note(self, what, place, amount=1):
        os.write(self._file, f"{os.getpid()}\t{what}\t{place}\t{amount}\n".encode())

    def close(self):
        """Return the sum of the amounts for each kind and place."""
        found = Counter()
        os.lseek(self._file, 0, os.SEEK_SET)
        with open(self._file) as lines:
            for line in lines:
                pid, what, place, amount = line.split()
                found[Noted(int(pid) != self._pid, what, place)] += int(amount)
        return found


def for_each_input(measure, few):
    """Return the costs per input from `measure(count)`, without the costs of the job itself.

    Computes them from the difference between `few` inputs and three times as many inputs.
    """
    measure(few // 2)  # The first job also imports modules.
    some, more = measure(few), measure(3 * few)
    slopes = {key: Fraction(more[key] - some[key], 2 * few) for key in some | more}
    return {key: slope for key, slope in slopes.items() if slope}


def assert_within(bounds, slopes):
    """Fail, and name the places, if an input costs more than `bounds`. A missing bound is 0."""
    found = Counter()
    for key, slope in slopes.items():
        found[key.what] += slope
    over = [what for what in found if found[what] > bounds.get(what, 0)]
    places = sorted(f"  {float(slopes[key]):g} {key}" for key in slopes if key.what in over)
    increases = ", ".join(f"{what} {float(found[what]):g} ({bounds.get(what, 0)})" for what in over)
    assert not over, "\n".join([f"an input costs more than before: {increases}", *places])


def calls_of(job):
    """Call `job`; return the number of calls of each function in WATCHED, by place."""
    tally = Tally()

    def note(frame, event, function):
        what = WATCHED.get(function) if event == "c_call" else None
        if what:
            place = place_of(frame)
            if not place.startswith(_OTHERS):
                tally.note(what, place)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        job()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return tally.close()


def bytes_of(job):
    """Call `job`; return the number of bytes sent through its queues and worker journals."""
    tally = Tally()

    def send(connection, data):
        if bytes(data) != _GOODBYE:
            tally.note("queue", "torch", len(data))
        sent(connection, data)

    def write(journal, record):
        tally.note("journal", "workers.worker_channel.finish", len(record))
        written(journal, record)

    sent, written = Connection._send_bytes, RingBuffer.write  # type: ignore[attr-defined]
    with (
        mock.patch.object(Connection, "_send_bytes", send),
        mock.patch.object(RingBuffer, "write", write),
    ):
        job()
    return tally.close()


def place_of(frame):
    """Return the innermost function of batchmill in a frame's call stack, as "module.function"."""
    while frame:
        _, found, path = frame.f_code.co_filename.rpartition("/batchmill/")
        if found:
            return f"{path.removesuffix('.py').replace('/', '.')}.{frame.f_code.co_name}"
        frame = frame.f_back
    return "?"
