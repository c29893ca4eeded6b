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

**`_MultiProcessingDataLoaderIter`** (`LoaderIterator`) with `_workers`, `_try_get_data`,
`_shutdown_workers`, `_worker_result_queue` and the queue's `_writer`. The engine needs the workers'
processes. It must stop waiting as soon as a worker dies. It must end a DataLoader at a known point,
also after it killed workers.
No public way: an iterator from `iter(loader)` offers only `__next__`. It shuts down when it is
garbage collected, and a traceback can delay that.
Upstream: https://github.com/pytorch/pytorch/issues/64766 requests an explicit `close`. Remove this
when `close` exists, and `__next__` raises a special error for a dead worker.

**`signal_handling._SIGCHLD_handler_set`** (`without_torch_sigchld_handler`). The first DataLoader
of a process installs a handler of SIGCHLD that raises at the line that is being executed. If that
line has just acquired a queue's lock, the lock is never released, and the process hangs.
No public way: replacing the handler afterwards is too late, because the handler can raise before.
A DataLoader that starts in another thread installs no handler, but its workers die when that thread
ends (PR_SET_PDEATHSIG).
Upstream: there is no issue. Remove this when DataLoader has an option to install no handler.
"""

import multiprocessing
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from torch.utils.data._utils import signal_handling
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from batchmill.workers.processes import has_ended

# Only the main thread receives SIGCHLD. Other threads check for dead workers at this interval.
_RECEIVE_SECONDS = 0.5
# Work that can be done instead of waiting begins after this time without a batch.
_IDLE_SECONDS = 0.02
# torch has no types for this module.
_torch_signals: Any = signal_handling


class WorkerDiedError(Exception):
    """A worker of a DataLoader has died."""


class IdleWork(Protocol):
    """Work that a process can do while it waits for a batch."""

    @property
    def is_waiting(self) -> bool:
        """True if there is work."""

    def advance(self) -> None:
        """Do a part of the work."""


class LoaderIterator(_MultiProcessingDataLoaderIter):
    """A DataLoader's iterator that raises WorkerDiedError, and only while it waits for a batch."""

    idle_work: IdleWork | None = None
    is_waiting = False

    @property
    def workers(self) -> Sequence[Any]:
        """The workers' `multiprocessing.Process` objects."""
        return self._workers

    def end(self) -> None:
        """Shut down the workers. They must be idle, or killed."""
        self._shutdown_workers()
        # A thread that still waits for the rest of a message then receives the end of the file.
        self._worker_result_queue._writer.close()  # type: ignore[attr-defined]

    def on_child_exit(self, *_: object) -> None:
        """Stop waiting if a worker has died. This is the handler of SIGCHLD.

        If a worker dies while it sends a batch, the rest of the batch never arrives.
        """
        if self.is_waiting and any(has_ended(worker.pid) for worker in self.workers):
            self.is_waiting = False
            raise WorkerDiedError

    def _try_get_data(self, timeout: float = _RECEIVE_SECONDS) -> tuple[bool, Any]:
        if not self._all_live():
            raise WorkerDiedError
        work = self.idle_work
        if not work or not work.is_waiting:
            return self._wait(timeout)
        received = self._wait(_IDLE_SECONDS)
        if not received[0]:
            work.advance()
        return received

    def _wait(self, timeout: float) -> tuple[bool, Any]:
        """Wait for a batch. Returns whether one has arrived, and the batch."""
        is_main = threading.current_thread() is threading.main_thread()
        self.is_waiting = True
        try:
            return self._receive(timeout) if is_main else self._receive_in_thread(timeout)
        finally:
            self.is_waiting = False

    def _receive_in_thread(self, timeout: float) -> tuple[bool, Any]:
        """Receive in a thread, because only the main thread can be interrupted while it waits."""
        received: Future[tuple[bool, Any]] = Future()

        def receive() -> None:
            try:
                received.set_result(self._receive(timeout))
            except BaseException as error:  # noqa: BLE001  # It is raised in the waiting thread.
                received.set_exception(error)

        threading.Thread(target=receive, daemon=True).start()
        while True:
            lived = self._all_live()
            if wait([received], _RECEIVE_SECONDS).done:
                return received.result()
            if not lived:
                raise WorkerDiedError

    def _receive(self, timeout: float) -> tuple[bool, Any]:
        try:
            received: tuple[bool, Any] = super()._try_get_data(timeout)  # type: ignore[no-untyped-call]
            return received
        except RuntimeError as error:
            if "DataLoader worker" in str(error):
                raise WorkerDiedError from error
            raise

    def _all_live(self) -> bool:
        return all(worker.is_alive() for worker in self.workers)


@contextmanager
def without_torch_sigchld_handler() -> Iterator[None]:
    """Prevent torch from installing its handler of SIGCHLD during the block."""
    was_set = _torch_signals._SIGCHLD_handler_set
    _torch_signals._SIGCHLD_handler_set = True
    try:
        yield
    finally:
        _torch_signals._SIGCHLD_handler_set = was_set


def use_socket_folder(folder: Path) -> None:
    """Make multiprocessing create the sockets of this process in `folder`."""
    multiprocessing.current_process()._config["tempdir"] = str(folder)  # type: ignore[attr-defined]


def raw_environment() -> dict[bytes, bytes]:
    """Return the dict behind `os.environ`. It must not be changed."""
    raw: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
    return raw
