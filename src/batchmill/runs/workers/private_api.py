"""All use of private names of other libraries. No other file of the engine may use one.

**`multiprocessing.current_process()._config["tempdir"]`** (`use_socket_folder`). A worker transfers
tensors through a socket, which multiprocessing creates in this folder. A killed worker leaves the
folder behind. The engine gives all workers one folder that it removes itself.
No public way: `multiprocessing.util.get_temp_dir()` returns a folder that the parent may have
created already, and its path may be too long for a socket.
Upstream: https://github.com/python/cpython/issues/132124 covers the long path. There is no issue
about a setter. Remove this when multiprocessing accepts the folder as an argument.

**`os.environ._data`** (`raw_environment`). After each input, a worker compares its environment with
its environment at the start.
No public way is fast enough. Measured with Python 3.11: comparing `dict(os.environb)` takes 17 us
for 30 variables and 102 us for 200; comparing the dict takes 0.3 us and 1.9 us. An audit hook for
`os.putenv` would slow down every audited call of a step, such as `open`, and cannot be removed.
Upstream: there is no issue. Remove this when `os.environb` is compared or copied in C.

**`signal_handling._SIGCHLD_handler_set` and `_remove_worker_pids`, and `_worker_pids_set`**
(`start_workers`). The first DataLoader of a process installs a handler of SIGCHLD. When a worker of
any DataLoader dies, the handler raises at the line that is being executed. If that line has just
acquired a lock, the lock is never released, and the process hangs. So the engine installs no
handler, and removes its workers from those that a handler of an earlier DataLoader checks.
No public way: a handler of our own would only help in the main thread, and replaces that of others.
Upstream: there is no issue. Remove this when DataLoader has an option to install no handler.
"""

import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling

# torch has no types for this module.
_torch_signals: Any = signal_handling


def start_workers(loader: DataLoader[Any]) -> Iterator[Any]:
    """Return the iterator of a DataLoader. If one of its workers dies, only `next` raises."""
    was_set = _torch_signals._SIGCHLD_handler_set
    _torch_signals._SIGCHLD_handler_set = True
    try:
        iterator: Any = iter(loader)
    finally:
        _torch_signals._SIGCHLD_handler_set = was_set
    _torch_signals._remove_worker_pids(id(iterator))
    iterator._worker_pids_set = False
    return cast("Iterator[Any]", iterator)


def use_socket_folder(folder: Path) -> None:
    """Make multiprocessing create the sockets of this process in `folder`."""
    multiprocessing.current_process()._config["tempdir"] = str(folder)  # type: ignore[attr-defined]


def raw_environment() -> dict[bytes, bytes]:
    """Return the dict behind `os.environ`. It must not be changed."""
    raw: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
    return raw
