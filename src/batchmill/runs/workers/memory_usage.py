"""Measures the memory that processes use and that is left, and configures their allocator."""

import ctypes
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from batchmill.runs.workers.processes import descendants

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_CGROUPS = Path("/sys/fs/cgroup")
# For cgroup versions 2 and 1: the file of the limit, the file of the use, and the name of the
# reclaimable memory in `memory.stat`.
_CGROUP_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
# Constants of glibc's mallopt(3). musl has no `mallopt`, so nothing changes there.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# The largest values that glibc itself sets, after a process has freed an array of 32 MiB.
_MMAP_BYTES, _KEPT_BYTES = 32 * 2**20, 64 * 2**20
_USER_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")
# Loaded at import time: after a fork, a thread that no longer exists may hold the loader's lock.
_mallopt = getattr(ctypes.CDLL(None), "mallopt", None)


class Headroom(NamedTuple):
    """The memory that the machine or this container has left, and its total, in bytes."""

    available: int
    total: int


def headroom() -> Headroom | None:
    """Return how much memory is left; None if the system does not report it."""
    rooms = [room for room in (_machine(), *map(_cgroup, _cgroup_folders())) if room]
    return min(rooms, default=None)


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process, including memory that it shares; 0 if unknown."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def used_bytes(pid: int, before: int, limit: int) -> int:
    """Return the bytes that a process and its descendants use beyond `before`.

    Memory that descendants share with the process after a fork counts once. Finding the shared
    memory takes milliseconds. So it is done only if the sum without that check exceeds `limit`.
    """
    resident = resident_bytes(pid)
    forks = list(descendants(pid))
    used = resident + sum(map(resident_bytes, forks)) - before
    if not forks or used <= limit:
        return used
    tables = [_table(Path(f"/proc/{process}/smaps_rollup")) for process in (pid, *forks)]
    # Each of these three is a lower bound, and the largest is the best estimate. The value `alone`
    # is exact unless a fork shares memory with its own forks. The value `shares` divides shared
    # memory among its processes, so it omits the part of processes outside this tree. The value
    # `largest` is the memory of the largest process.
    alone = resident + sum(
        _bytes_of(table, "Private_Clean:", "Private_Dirty:") if table else resident_bytes(fork)
        for fork, table in zip(forks, tables[1:], strict=True)
    )
    shares = sum(_bytes_of(table, "Pss:") for table in tables)
    largest = max(_bytes_of(table, "Rss:") for table in tables)
    return max(alone, shares, largest) - before


def _bytes_of(table: dict[str, int], *names: str) -> int:
    """Return the sum of these rows of a table in kB, in bytes. A missing row counts as 0."""
    return sum(table.get(name, 0) for name in names) * 1024


def kernel_oom_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory since it started."""
    return _table(Path("/proc/vmstat")).get("oom_kill", 0)


def offer_to_oom_killer() -> None:
    """Make the kernel kill this process first if memory runs out."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _machine() -> Headroom | None:
    table = _table(Path("/proc/meminfo"))
    if "MemAvailable:" not in table:
        return None
    return Headroom(table["MemAvailable:"] * 1024, table["MemTotal:"] * 1024)


def _cgroup_folders() -> list[Path]:
    """Return the folders that may have this process's limit: the root, and its own cgroup's."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    paths = [line.split(":", 2)[2].lstrip("/") for line in lines if line.count(":") >= 2]
    return [root / path for root in (_CGROUPS, _CGROUPS / "memory") for path in {"", *paths}]


def _cgroup(folder: Path) -> Headroom | None:
    for limit, used, reclaimable in _CGROUP_FILES:
        try:
            total = int((folder / limit).read_text())
            in_use = int((folder / used).read_text())
        except (OSError, ValueError):  # The file is missing, or has "max", which means no limit.
            continue
        return Headroom(total - in_use + _table(folder / "memory.stat").get(reclaimable, 0), total)
    return None


def _table(path: Path) -> dict[str, int]:
    """Return the names and numbers in a file; an empty dict if the file cannot be read."""
    try:
        rows = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


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
