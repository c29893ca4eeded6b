"""Processes of this machine that run shards, one shard at a time each.

A process is started with exec, not with fork: its parent may have threads, locks and Prefect's
services, which do not work after a fork. Parent and child send each other pickled messages over a
socket that no other process has.
"""

import gc
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, NamedTuple

from batchmill.execution.run_shard import ShardResult, run_shard
from batchmill.execution.shard import Shard
from batchmill.outcome import Outcome
from batchmill.storage.access import Access, access_to

logger = logging.getLogger(__name__)

_END_SECONDS = 10
_SHOWN_BYTES = 4096


class ShardProcessDiedError(Exception):
    """A shard's process ended before its shard did. The first line of the message says how."""


class Failure(NamedTuple):
    """An input of a running shard that is not ok, and the reason."""

    input: str
    kind: str
    reason: str


class ShardProcess:
    """One process that runs shards, as its parent sees it."""

    def __init__(self) -> None:
        """Start the process. If batchmill's log level is DEBUG, the process prints to stderr.

        The kernel kills the process when the thread that has started it ends.
        """
        verbose = logger.isEnabledFor(logging.DEBUG)
        ours, theirs = socket.socketpair()
        # What the process prints, in a file without a name. It is shown if the process dies.
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115  # Closed by `end`.
        with theirs:
            self._process = subprocess.Popen(
                [
                    *[sys.executable, "-P", "-m", "batchmill.execution.shard_process"],
                    *[str(theirs.fileno()), str(os.getpid())],
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno() if verbose else self._printed,
                stderr=None if verbose else self._printed,
                # Ctrl-C in a terminal must reach only the run, which then stops the shard.
                start_new_session=True,
            )
        self._socket = ours
        self._channel = ours.makefile("rwb")
        threading.Thread(target=self._close_when_dead, name="shard-process", daemon=True).start()

    def run(
        self, shard: Shard, access: Sequence[Access], on_failure: Callable[[Failure], None]
    ) -> ShardResult:
        """Run a shard in the process.

        Args:
            shard: The shard.
            access: The credentials of the stores.
            on_failure: Called with each input that is not ok.

        Returns:
            The result of `run_shard`.

        Raises:
            ShardProcessDiedError: The process died.
            Exception: Any error that `run_shard` raised.
        """
        try:
            _send(self._channel, (shard, list(access), sys.path))
            while True:
                answer = pickle.load(self._channel)  # noqa: S301  # From our own child.
                if isinstance(answer, Failure):
                    on_failure(answer)
                elif isinstance(answer, BaseException):
                    raise answer
                else:
                    return ShardResult(*answer)
        except (EOFError, BrokenPipeError, ConnectionError) as error:
            self._process.wait()
            raise ShardProcessDiedError(self._describe_end()) from error

    def kill(self) -> None:
        """Kill the process. Its DataLoader workers die with it."""
        self._process.kill()

    def release(self) -> None:
        """Let the process end when it is idle. `end` waits for that."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """End the process, at the latest after some seconds, and release its socket and file."""
        self.release()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with suppress(OSError):
            self._channel.close()
        self._socket.close()
        self._printed.close()

    def _close_when_dead(self) -> None:
        """Close the connection when the process is dead. A process that it started may hold it."""
        self._process.wait()
        self.release()

    def _describe_end(self) -> str:
        """Return how the process ended, and what it printed last."""
        code = self._process.returncode
        how = f"exit code {code}"
        if code < 0:
            with suppress(ValueError):
                how = signal.Signals(-code).name
        # The child shares the position of this file. Only `pread` does not change it.
        size = os.fstat(self._printed.fileno()).st_size
        start = max(0, size - _SHOWN_BYTES)
        printed = os.pread(self._printed.fileno(), _SHOWN_BYTES, start).decode(errors="replace")
        return "\n".join([f"the process of the shard died ({how})", *printed.splitlines()])


class ShardProcesses:
    """The processes of one run. A process that has run a shard is used for the next shard."""

    def __init__(self) -> None:
        self._idle: list[ShardProcess] = []
        self._lock = threading.Lock()

    def warm_up(self) -> None:
        """Start a process for the first shard. It needs a second to import torch."""
        self._idle.append(ShardProcess())

    @contextmanager
    def one(self) -> Iterator[ShardProcess]:
        """Yield a process for this block only. After an error in the block, it is not reused."""
        with self._lock:
            process = self._idle.pop() if self._idle else None
        process = process or ShardProcess()
        try:
            yield process
        except BaseException:
            process.kill()
            process.end()
            raise
        with self._lock:
            self._idle.append(process)

    def release(self) -> None:
        """Let idle processes end, without waiting for them."""
        for process in self._idle:
            process.release()

    def end(self) -> None:
        """End idle processes, and wait for them."""
        self.release()
        while self._idle:
            self._idle.pop().end()


_shared: ContextVar[ShardProcesses | None] = ContextVar("shard_processes", default=None)


@contextmanager
def shard_processes() -> Iterator[ShardProcesses]:
    """Yield the processes of the surrounding block; or new ones, which end with this block."""
    around = _shared.get()
    if around:
        yield around
        return
    own = ShardProcesses()
    token = _shared.set(own)
    try:
        yield own
    finally:
        _shared.reset(token)
        own.end()


def serve(descriptor: int, parent: int) -> None:
    """Run the shards that the parent sends over a socket, until the parent closes the socket."""
    # A shard needs these imports when it begins. torch takes a second, during which the parent
    # prepares a shard.
    import batchmill.execution.shard_execution  # noqa: F401
    from batchmill.execution.isolation.processes import end_with_parent

    end_with_parent(parent)

    with socket.socket(fileno=descriptor) as connection, connection.makefile("rwb") as channel:
        while True:
            try:
                shard, access, sys.path[:] = pickle.load(channel)  # noqa: S301  # From our parent.
            except (EOFError, ConnectionError):
                return
            _send(channel, _answer(shard, access, channel))


def _answer(shard: Shard, access: Sequence[Access], channel: Any) -> Any:
    """Run a shard. Returns its result as a plain tuple, or the exception that it raised."""

    def report(outcome: Outcome) -> None:
        if outcome.kind != "ok":
            _send(channel, Failure(outcome.input, outcome.kind, outcome.reason))

    try:
        with access_to(access):
            return tuple(run_shard(shard, report))
    except BaseException as error:  # noqa: BLE001  # The parent raises it.
        return error


def _send(channel: Any, message: Any) -> None:
    try:
        data = pickle.dumps(message)
    except Exception:
        if not isinstance(message, BaseException):
            raise
        data = pickle.dumps(RuntimeError(f"{type(message).__name__}: {message}"))
    channel.write(data)
    channel.flush()


if __name__ == "__main__":
    # This module is imported again, under its own name: pickled classes are looked up there.
    from batchmill.execution import shard_process

    shard_process.serve(int(sys.argv[1]), int(sys.argv[2]))
    # Without this, the interpreter collects garbage in all of torch at its end, for half a second.
    gc.freeze()
