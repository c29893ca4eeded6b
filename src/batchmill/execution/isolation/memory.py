"""How much memory processes use, and how much is left.

All of this is for Linux. On other systems the functions find nothing; their docstrings say so.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from batchmill.execution.isolation.processes import descendants

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_CGROUPS = Path("/sys/fs/cgroup")
# The files of the limit and the use, and the statistic of reclaimable memory, of versions 2 and 1.
_CGROUP_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


class Headroom(NamedTuple):
    """The memory that the machine or this container has left, and its total, in bytes."""

    available: int
    total: int


def headroom() -> Headroom | None:
    """Return how much memory is left; None if the system does not report it."""
    found = [room for room in (_machine(), *map(_cgroup, _cgroup_folders())) if room]
    return min(found, default=None)


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process, including memory that it shares; 0 if unknown."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def used_bytes(pid: int, before: int, limit: int) -> int:
    """Return the bytes that a process and its descendants use beyond `before`.

    Memory that descendants share with it after a fork counts once. To find that memory takes
    milliseconds. So this is done only if the sum with shared memory exceeds `limit`.
    """
    own = resident_bytes(pid)
    forks = list(descendants(pid))
    used = own + sum(map(resident_bytes, forks)) - before
    if not forks or used <= limit:
        return used
    tables = [_table(Path(f"/proc/{process}/smaps_rollup")) for process in (pid, *forks)]
    # Each of these three is a lower bound. The largest is the best estimate. `alone` is exact
    # unless a fork shares memory with its own forks. `shares` divides shared memory among its
    # processes, and so misses the part of processes outside this tree. `largest` is one process.
    alone = own + sum(
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
    """Return the folders that may hold our limit. Inside a container, that is the root folder."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    own = [line.split(":", 2)[2].lstrip("/") for line in lines if line.count(":") >= 2]
    return [root / path for root in (_CGROUPS, _CGROUPS / "memory") for path in {"", *own}]


def _cgroup(folder: Path) -> Headroom | None:
    for limit, used, reclaimable in _CGROUP_FILES:
        try:
            total = int((folder / limit).read_text())
            in_use = int((folder / used).read_text())
        except (OSError, ValueError):  # The file is missing, or says "max": no limit.
            continue
        return Headroom(total - in_use + _table(folder / "memory.stat").get(reclaimable, 0), total)
    return None


def _table(path: Path) -> dict[str, int]:
    """Read a file of names and numbers; empty if it cannot be read."""
    try:
        rows = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}
