"""How much memory processes use, and how much there is left for them.

All of it is Linux; elsewhere the functions do less, and say so.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from batchmill.execution.isolation.processes import descendants

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_CGROUPS = Path("/sys/fs/cgroup")
# Limit, use, and the statistic of what the kernel can take back at once: version 2, version 1.
_CGROUP_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


class Headroom(NamedTuple):
    """What the machine, or the container that we are in, can still give; in bytes."""

    available: int
    total: int


def headroom() -> Headroom | None:
    """Return how much memory is left; None where nothing tells."""
    found = [room for room in (_machine(), *map(_cgroup, _cgroup_folders())) if room]
    return min(found, default=None)


def resident_bytes(pid: int) -> int:
    """Return the memory that a process has in use, with what it shares with others."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def used_bytes(pid: int, before: int, limit: int) -> int:
    """Return what a process and its descendants use beyond `before`, when it had begun.

    What descendants share with it by a fork counts once. To tell that apart takes milliseconds, so
    it is done only where there seems to be more than `limit`.
    """
    own = resident_bytes(pid)
    forks = list(descendants(pid))
    used = own + sum(map(resident_bytes, forks)) - before
    if not forks or used <= limit:
        return used
    tables = [_table(Path(f"/proc/{process}/smaps_rollup")) for process in (pid, *forks)]
    # None of these is more than there is. The first is all of it, unless a fork has memory that it
    # shares with forks of its own; then the others come closer: each process's share of what
    # several have, which leaves out what those have that are not asked; and the largest process.
    alone = own + sum(
        _bytes_of(table, "Private_Clean:", "Private_Dirty:") if table else resident_bytes(fork)
        for fork, table in zip(forks, tables[1:], strict=True)
    )
    shares = sum(_bytes_of(table, "Pss:") for table in tables)
    largest = max(_bytes_of(table, "Rss:") for table in tables)
    return max(alone, shares, largest) - before


def _bytes_of(table: dict[str, int], *names: str) -> int:
    """Add such rows of a table in kB up; what is not there is 0."""
    return sum(table.get(name, 0) for name in names) * 1024


def kernel_oom_kills() -> int:
    """Return how many processes the kernel has killed for want of memory since it started."""
    return _table(Path("/proc/vmstat")).get("oom_kill", 0)


def offer_to_oom_killer() -> None:
    """Have the kernel, if memory runs out, kill this process before any other."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _machine() -> Headroom | None:
    table = _table(Path("/proc/meminfo"))
    if "MemAvailable:" not in table:
        return None
    return Headroom(table["MemAvailable:"] * 1024, table["MemTotal:"] * 1024)


def _cgroup_folders() -> list[Path]:
    """Return the folders that may tell of our container's limit; in one, its own is the root."""
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
        except (OSError, ValueError):  # Not there, or "max": no limit.
            continue
        return Headroom(total - in_use + _table(folder / "memory.stat").get(reclaimable, 0), total)
    return None


def _table(path: Path) -> dict[str, int]:
    """Read a file of names and numbers."""
    try:
        rows = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}
