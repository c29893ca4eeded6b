"""Processes of this machine that run shards, one shard at a time each.

A process is started with exec, not forked: its parent may have threads, locks and Prefect's
services, which no fork survives. Parent and child send each other pickled messages over a socket
that they alone have.
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
    """A shard's process ended before its shard did. The first line says how."""


class Failure(NamedTuple):
    """An input of a running shard that is not ok, and why."""

    input: str
    kind: str
    reason: str


class ShardProcess:
    """One process that runs shards, as its parent sees it."""

    def __init__(self) -> None:
        """Start the process. If batchmill's log level is DEBUG, what it prints goes to stderr.

        The kernel kills it when the thread that has started it ends.
        """
        verbose = logger.isEnabledFor(logging.DEBUG)
        ours, theirs = socket.socketpair()
        # Kept in a file that nobody else can open: shown if the process dies.
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
                # Ctrl-C in a terminal is for the run, which asks the shard to stop.
                start_new_session=True,
            )
        self._socket = ours
        self._channel = ours.makefile("rwb")
        threading.Thread(target=self._hang_up, name="shard-process", daemon=True).start()

    def run(
        self, shard: Shard, access: Sequence[Access], on_failure: Callable[[Failure], None]
    ) -> ShardResult:
        """Run a shard and return its result; calls `on_failure` with each input that is not ok.

        Raises what `run_shard` raises, and ShardProcessDiedError.
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
            raise ShardProcessDiedError(self._last_words()) from error

    def kill(self) -> None:
        """Kill it, and with it the DataLoader workers that it has."""
        self._process.kill()

    def release(self) -> None:
        """Have it end when it has nothing to do; `end` waits for that."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """End it, at the latest after some seconds, and give back what it took."""
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

    def _hang_up(self) -> None:
        """Close the connection when the process is dead: a process that it left may hold it."""
        self._process.wait()
        self.release()

    def _last_words(self) -> str:
        """Say how the process ended, and what it printed last."""
        code = self._process.returncode
        how = f"exit code {code}"
        if code < 0:
            with suppress(ValueError):
                how = signal.Signals(-code).name
        # The child shares the position of this file: nothing but `pread` leaves it alone.
        size = os.fstat(self._printed.fileno()).st_size
        start = max(0, size - _SHOWN_BYTES)
        printed = os.pread(self._printed.fileno(), _SHOWN_BYTES, start).decode(errors="replace")
        return "\n".join([f"the process of the shard died ({how})", *printed.splitlines()])


class ShardProcesses:
    """The processes of one run; one that has run a shard is used for the next."""

    def __init__(self) -> None:
        self._idle: list[ShardProcess] = []
        self._lock = threading.Lock()

    def warm_up(self) -> None:
        """Start a process for the first shard: to import torch takes it a second."""
        self._idle.append(ShardProcess())

    @contextmanager
    def one(self) -> Iterator[ShardProcess]:
        """Give a process that nobody else has. After an error in the block, it is not reused."""
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
        """Have those that are idle end, while the caller has other things to do."""
        for process in self._idle:
            process.release()

    def end(self) -> None:
        """End those that are idle."""
        self.release()
        while self._idle:
            self._idle.pop().end()


_shared: ContextVar[ShardProcesses | None] = ContextVar("shard_processes", default=None)


@contextmanager
def shard_processes() -> Iterator[ShardProcesses]:
    """Give the processes of the block around this one, or new ones, which end with the block."""
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
    """Run the shards that a parent sends over a socket, until it closes that."""
    # What a shard imports when it begins: torch takes a second, in which the parent sends one.
    import batchmill.execution.batch_runner  # noqa: F401
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
    """Run a shard; returns its result as a plain tuple, or what it raised."""

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
    # Imported once more, under its name: pickled classes are looked up there.
    from batchmill.execution import shard_process

    shard_process.serve(int(sys.argv[1]), int(sys.argv[2]))
    # At its end, the interpreter would look for garbage in all of torch, which takes half a second.
    gc.freeze()
