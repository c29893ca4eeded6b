"""A process on this machine that runs one shard after another.

It is started with exec, not with fork. The parent may have threads, locks and Prefect
services, and these do not work after a fork. Parent and child exchange pickled messages over a
private socket.
"""

import gc
import logging
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from batchmill.core.security.credentials import Access, access_to
from batchmill.core.storage import is_url
from batchmill.core.storage.remote import why_unusable
from batchmill.runs.shards.run_shard import ShardResult, run_shard
from batchmill.runs.shards.shard import Shard
from batchmill.runs.shards.step_log import StepLines
from batchmill.runs.workers.processes import children, end_with_parent, kill_descendants
from batchmill.runs.workers.worker_exit import signal_name

logger = logging.getLogger(__name__)

_END_SECONDS = 10
_SHOWN_BYTES = 4096
# The thread that ends an overdue batch may send lines of a step, too.
_sending = threading.Lock()


class ShardProcessDiedError(Exception):
    """A process died while it ran a shard. The first line of the message has the reason."""


class ShardProcess:
    """A handle to one process that runs shards. The parent uses it.

    Args:
        place: The dataset of the first shard, if it is known already.

    Attributes:
        gpu: The only GPU of the process, by its name in CUDA_VISIBLE_DEVICES. Empty: all GPUs. It
            can be set before the first shard.
    """

    def __init__(self, place: str = "") -> None:
        """Start the process. If batchmill's log level is DEBUG, the process prints to stderr.

        The kernel kills the process when the thread that started it ends.
        """
        self.parent = os.getpid()
        self.gpu = ""
        self._inherited = _inherited()
        verbose = logger.isEnabledFor(logging.DEBUG)
        ours, theirs = socket.socketpair()
        # A file without a name for the output of the process. It is shown if the process dies.
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115  # Closed by `end`.
        with theirs:
            arguments = [str(theirs.fileno()), str(os.getpid()), place]
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "batchmill.runs.shards.process", *arguments],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # In a notebook or a test, sys.stderr may have no file descriptor.
                stdout=2 if verbose else self._printed,
                stderr=None if verbose else self._printed,
                # Ctrl-C in a terminal must reach only the parent, which then stops the shard.
                start_new_session=True,
            )
        self._socket = ours
        self._channel = Connection(os.dup(ours.fileno()))
        threading.Thread(target=self._close_when_dead, name="shard-process", daemon=True).start()

    def run(
        self,
        shard: Shard,
        access: Sequence[Access],
        on_lines: Callable[[StepLines], None] = lambda _: None,
    ) -> ShardResult:
        """Run a shard in the process.

        Args:
            shard: The shard.
            access: The credentials of the stores.
            on_lines: Called with the lines of the step's log, if the shard has `log_steps`.

        Returns:
            The result of `run_shard`.

        Raises:
            ShardProcessDiedError: The process died.
            Exception: Any error that `run_shard` raised.
        """
        with suppress(OSError):  # A dead process has no answer.
            _send(self._channel, (shard, list(access), sys.path, self.gpu))
        while True:
            try:
                answer = self._channel.recv()
            except (EOFError, OSError) as error:
                self._process.wait()
                raise ShardProcessDiedError(self._describe_end()) from error
            if isinstance(answer, StepLines):
                on_lines(answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                return ShardResult(*answer)

    @property
    def is_current(self) -> bool:
        """True if the process is alive, and a new one would inherit the same from this thread."""
        return self._inherited == _inherited() and self._process.poll() is None

    def kill(self) -> None:
        """Kill the process. Its DataLoader workers die with it."""
        self._process.kill()

    def release(self) -> None:
        """Request that the process ends when it is idle. Does not wait."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """End the process, and close its socket and file. Kill the process if it does not end."""
        self.release()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._channel.close()
        self._socket.close()
        self._printed.close()

    def _close_when_dead(self) -> None:
        """Close the connection when the process is dead.

        A process that the dead process started may still hold the other side open.
        """
        self._process.wait()
        self.release()

    def _describe_end(self) -> str:
        """Return how the process ended, and the end of its output."""
        code = self._process.returncode
        how = signal_name(-code) if code < 0 else f"exit code {code}"
        # The child shares the position in this file. `pread` does not change it.
        size = os.fstat(self._printed.fileno()).st_size
        start = max(0, size - _SHOWN_BYTES)
        printed = os.pread(self._printed.fileno(), _SHOWN_BYTES, start).decode(errors="replace")
        return "\n".join([f"the shard's process died ({how})", *printed.splitlines()])


def _inherited() -> tuple[Any, ...]:
    """Return what a process inherits from this thread when it starts."""
    try:
        folder = os.getcwd()
    except FileNotFoundError:
        folder = ""
    is_verbose = logger.isEnabledFor(logging.DEBUG)
    # The kernel kills the process when the thread that started it ends.
    return os.getpid(), threading.get_ident(), folder, dict(os.environ), is_verbose


def serve(descriptor: int, parent: int, place: str) -> None:
    """Run the shards that the parent sends over a socket, until the parent closes the socket.

    Args:
        descriptor: The number of the socket's file descriptor.
        parent: The id of the parent process.
        place: The dataset of the first shard; empty if it is not known yet.
    """
    # Import torch now, while the parent prepares a shard. The import takes a second, and a search
    # for garbage among the imported objects would take longer.
    gc.disable()
    from batchmill.runs.shards import shard_execution  # noqa: F401

    if is_url(place):
        why_unusable(place)  # It imports the library for the bucket.
    gc.freeze()
    gc.enable()

    end_with_parent(parent)

    with Connection(descriptor) as channel:
        while True:
            try:
                shard, access, sys.path[:], gpu = channel.recv()
            except (EOFError, OSError):
                _end_processes()
                return
            if gpu:
                os.environ["CUDA_VISIBLE_DEVICES"] = gpu
            _send(channel, _answer(shard, access, channel))


def _end_processes() -> None:
    """Kill the processes that a step has left behind.

    Python's resource tracker ends by itself, after it has removed the shared memory of the step.
    """
    trackers = set()
    for child in children(os.getpid()):
        with suppress(OSError), open(f"/proc/{child}/cmdline", "rb") as command:
            if b"resource_tracker" in command.read():
                trackers.add(child)
    kill_descendants(frozenset(trackers))


def _answer(shard: Shard, access: Sequence[Access], channel: Connection) -> Any:
    """Run a shard. Return its result as a plain tuple, or the exception that it raised."""
    try:
        with access_to(access):
            return tuple(run_shard(shard, on_lines=lambda lines: _send(channel, lines)))
    except BaseException as error:  # noqa: BLE001  # The parent raises it.
        return error


def _send(channel: Connection, message: Any) -> None:
    try:
        data = pickle.dumps(message)
    except Exception:
        if not isinstance(message, BaseException):
            raise
        data = pickle.dumps(RuntimeError(f"{type(message).__name__}: {message}"))
    with _sending:
        channel.send_bytes(data)


if __name__ == "__main__":
    # Import this module under its own name, because pickle looks up classes by that name.
    from batchmill.runs.shards import process as shard_process

    shard_process.serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    # Without `freeze`, garbage collection at exit visits all objects of torch for half a second.
    gc.freeze()
