"""Repairs forks of a process that has used Prefect, such as a DataLoader's workers after a run.

This is the only file that uses a private name of the interpreter. A fork calls at its end what the
parent's threads have registered, and Prefect's services raise an AssertionError there since
https://github.com/PrefectHQ/prefect/pull/19116: they forget their state in a fork, but not their
registration. The fork then exits with 1, and a DataLoader raises in the middle of an epoch.
batchmill's own shards are not affected: they run in processes that are started with exec. This file
goes when `tests/flows/services/test_forks.py` passes without it.
"""

import os
import threading
from typing import Any


def _forget_services() -> None:
    calls: list[Any] = threading._threading_atexits  # type: ignore[attr-defined]
    calls[:] = [call for call in calls if not _is_prefects(call)]


def _is_prefects(call: Any) -> bool:
    owner = getattr(getattr(call, "func", call), "__self__", None)
    return type(owner).__module__.partition(".")[0] == "prefect"


os.register_at_fork(after_in_child=_forget_services)
