"""Make forks exit with 0, although their parent process has used Prefect.

A torch DataLoader forks its workers, for example in a training loop after a run.

The bug: a Prefect service registers a function that runs when the process exits. A fork inherits
the registration. Since https://github.com/PrefectHQ/prefect/pull/19116, Prefect resets its services
in a fork, but keeps the registration. The function then fails with an AssertionError, the fork
exits with 1, and the DataLoader raises an error. The shards of batchmill are not affected, because
their processes start with exec.

The private name: Python keeps the registered functions in `threading._threading_atexits`. There is
no public way to remove a function. https://github.com/python/cpython/issues/86128 proposes a public
function that registers, but no function that removes. Prefect has no setting that skips the
registration. The engine has its own private names in `execution/isolation/private_api.py`.

When to remove this file: when `tests/flows/services/test_forks.py` passes without it. This needs a
Prefect release that ignores the exit of a reset service, or a Python release that clears the list
in forks.
"""

import os
import threading
from typing import Any


def _remove_exit_calls_of_prefect() -> None:
    calls: list[Any] = threading._threading_atexits  # type: ignore[attr-defined]
    calls[:] = [call for call in calls if not _is_of_prefect(call)]


def _is_of_prefect(call: Any) -> bool:
    owner = getattr(getattr(call, "func", call), "__self__", None)
    return type(owner).__module__.partition(".")[0] == "prefect"


os.register_at_fork(after_in_child=_remove_exit_calls_of_prefect)
