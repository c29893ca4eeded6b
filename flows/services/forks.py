"""Lets a process that has used Prefect be forked: for a training loop's DataLoader, after a run."""

import os
import threading
from typing import Any


def _forget_services() -> None:
    """Take the services of Prefect's off the list of what is waited for at the end of a fork.

    Their threads are not in it, and Prefect 3.8 has the fork end with an error: a DataLoader whose
    workers end so raises in the middle of an epoch.
    """
    calls: list[Any] = threading._threading_atexits  # type: ignore[attr-defined]
    calls[:] = [call for call in calls if not _is_prefects(call)]


def _is_prefects(call: Any) -> bool:
    owner = getattr(getattr(call, "func", call), "__self__", None)
    return type(owner).__module__.partition(".")[0] == "prefect"


os.register_at_fork(after_in_child=_forget_services)
