"""Describe the machine that a benchmark runs on."""

import os
import platform
from pathlib import Path
from typing import Any


def describe() -> dict[str, Any]:
    """Return the processor, cores, memory, versions and load average."""
    return {
        "processor": _line("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(int((_line("/proc/meminfo", "MemTotal") or "0").split()[0]) / 2**20),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
    }


def _line(file: str, name: str) -> str:
    for line in Path(file).read_text().splitlines():
        if line.startswith(name):
            return line.partition(":")[2].strip()
    return ""
