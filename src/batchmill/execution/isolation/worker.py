"""A DataLoader worker: runs inputs, and restores its process after each input."""

import faulthandler
import logging
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.util import Finalize

# Imported by name: a step may replace functions of the module.
from os import chdir, close, dup, fstat, ftruncate, getcwd, lseek
from pathlib import Path
from typing import IO, Any

from batchmill.execution.isolation.allocator import keep_freed_memory
from batchmill.execution.isolation.batches import Batch, IndexedSample, Sample, gather_batch
from batchmill.execution.isolation.memory import offer_to_oom_killer
from batchmill.execution.isolation.private_api import raw_environment, use_socket_folder
from batchmill.execution.isolation.process_state import ProcessState
from batchmill.execution.isolation.processes import (
    adopt_orphans,
    end_with_parent,
    kill_descendants,
)
from batchmill.execution.isolation.shared_flags import DrainFlag, StartBarrier, StopIndex
from batchmill.execution.isolation.worker_channel import WorkerChannel, anonymous_file
from batchmill.outcome import Outcome

SKIPPED = -1
DUMP_SIGNAL = signal.SIGUSR1
# The position of the worker's streams while no step has used them. A file that a step opens has
# another position. Comparing positions takes a quarter of the time of comparing files.
_MARK = 0x6D696C6C
_STREAMS = (0, 1, 2)
_ENCODING, _ERRORS = "utf-8", "backslashreplace"
# A worker is replaced when its steps have left this many file descriptors open.
_MAX_LEFT_OPEN = 200


@dataclass(frozen=True, kw_only=True)
class GuardedInputs:
    """A map-style torch Dataset that runs inputs in a worker and sends outcomes to its channel.

    An item is only the input's index, so the DataLoader loses no outcome when a worker dies. In a
    batch step, the item is the sample. If the sample is lost, the input is loaded again.
    """

    run: Callable[[int], Outcome | Sample]
    drain: DrainFlag
    stop_index: StopIndex

    def __getitem__(self, index: int) -> int | IndexedSample:
        if self.drain.is_set():
            return SKIPPED
        if self.stop_index.excludes(index):
            return SKIPPED
        try:
            _worker.channel.begin(index)
            # Check again, now that the channel shows the input. The shard's process sets the flag
            # or the index, and reads the channels afterwards. It must see every input that begins,
            # because it kills workers that seem idle.
            if self.drain.is_set() or self.stop_index.excludes(index):
                _worker.channel.leave()
                return SKIPPED
            outcome = self.run(index)
            # Do this first, because a timer of the step may expire at any moment.
            signal.setitimer(signal.ITIMER_REAL, 0)
            silent = _worker.is_silent()
            if isinstance(outcome, Sample):
                # Restore before `leave`: if the worker is broken, its channel must show this input.
                _worker.restore(silent=silent)
                _worker.channel.leave()
                return IndexedSample(index, outcome)
            if outcome.kind != "ok" and _worker.has_log():
                outcome = outcome._replace(log=_worker.channel.log_tail())
            _worker.channel.finish(index, outcome)
            _worker.restore(silent=silent)
        except BaseException:  # noqa: BLE001
            # The step has broken its worker. End only the worker, not the shard.
            _worker.exit_broken()
        return index


@dataclass(frozen=True)
class Collate:
    """The DataLoader's collate function for samples. It runs in a worker."""

    collate: Callable[[list[Any]], Any]

    def __call__(self, items: Sequence[int | IndexedSample]) -> Batch:
        """Collate the samples that the worker has loaded."""
        return gather_batch(items, collate=self.collate, channel=_worker.channel)


class BrokenWorkerError(Exception):
    """The process cannot be restored after an input."""


class _Worker:
    """The state of this worker process."""

    channel: WorkerChannel

    def begin(
        self, channel: WorkerChannel, parent: int, *, keeps_memory: bool, sockets: Path | None
    ) -> None:
        self.channel = channel
        self._pid = os.getpid()
        os.setsid()
        # A daemon may not start processes, but a step may. The worker kills them at its end.
        multiprocessing.current_process().daemon = False
        if sockets:
            use_socket_folder(sockets)
        end_with_parent(parent)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # The handler is that of the shard's process.
        adopt_orphans()
        offer_to_oom_killer()
        if keeps_memory:
            keep_freed_memory()
        channel.enter()
        self._input = sys.stdin
        self._stdin = anonymous_file("batchmill-stdin")
        os.lseek(self._stdin, _MARK, os.SEEK_SET)
        try:
            self._folder = getcwd()
        except FileNotFoundError:
            self._folder = ""  # The working directory was removed, so it cannot be restored.
        self._take_streams()
        for logger in [
            logging.getLogger(),
            *map(logging.getLogger, logging.root.manager.loggerDict),
        ]:
            logger.handlers = []
        logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
        # faulthandler writes the stack even while a step holds the interpreter's lock. Ray may have
        # enabled it already. Only a new `enable` replaces the handlers of torch.
        faulthandler.disable()
        faulthandler.enable(channel.log, all_threads=False)
        faulthandler.register(DUMP_SIGNAL, channel.log, all_threads=False)
        # The first finalizer runs before multiprocessing waits for child processes. The second runs
        # when the queue to the parent is empty.
        Finalize(None, kill_descendants, (self._pid,), exitpriority=1000)
        Finalize(None, self.end, exitpriority=-1000)
        self.record_settings()

    def record_settings(self) -> None:
        """Record the environment and the settings, to restore them after each input."""
        self._pid = os.getpid()
        self._environ = os.environ
        self._environment = dict(raw_environment())
        self._next_descriptor = _next_descriptor()
        self._state = ProcessState()

    def restore(self, *, silent: bool) -> None:
        """Restore streams, log, working directory and environment after an input."""
        if not silent:
            self.restore_streams()
            self._clear_log()
        self.restore_settings()

    def restore_streams(self) -> None:
        """Restore the standard streams. Raises BrokenWorkerError if a step closed their files."""
        if not self._has_streams():
            if not self._has_files():
                raise BrokenWorkerError
            self._take_streams()

    def restore_settings(self) -> None:
        """Restore the working directory, the environment and the settings of the process.

        Raises BrokenWorkerError if that is impossible, or if steps have left too many files open.
        """
        try:
            moved = getcwd() != self._folder
        except FileNotFoundError:
            moved = True
        if moved and self._folder:
            chdir(self._folder)
        if os.environ is not self._environ:
            os.environ = self._environ  # noqa: B003
        if raw_environment() != self._environment:
            os.environb.clear()
            os.environb.update(self._environment)
        if _next_descriptor() > self._next_descriptor + _MAX_LEFT_OPEN:
            raise BrokenWorkerError  # Soon, no further input could be opened.
        if not self._state.restore():
            raise BrokenWorkerError

    def exit_broken(self) -> None:
        """End this worker, which cannot be restored. Another worker replaces it."""
        kill_descendants(self._pid)
        os._exit(1)

    def has_log(self) -> bool:
        """Return whether the log is still open. A step may have closed or replaced it."""
        try:
            return _identity(self.channel.log) == self._identities[1]
        except OSError:
            return False

    def _has_files(self) -> bool:
        try:
            return self.has_log() and _identity(self._stdin) == self._identities[0]
        except OSError:
            return False

    def _clear_log(self) -> None:
        if not self.has_log():
            raise BrokenWorkerError
        ftruncate(self.channel.log, 0)
        lseek(self.channel.log, _MARK, os.SEEK_SET)

    def end(self) -> None:
        """Kill all processes that steps started, and exit without the parent's exit handlers.

        Prefect's exit handlers would wait for threads that do not exist in a fork.
        """
        failed = sys.exc_info()[0] is not None
        if failed:
            traceback.print_exc()
        kill_descendants(os.getpid())
        os._exit(1 if failed else 0)

    def _take_streams(self) -> None:
        """Redirect standard output and error to the log, and make standard input empty.

        A thread of the parent may have held the lock of the parent's streams during the fork. In
        the worker that lock is never released, and a step that prints or logs would hang.
        """
        os.dup2(self._stdin, 0)
        os.dup2(self.channel.log, 1)
        os.dup2(self.channel.log, 2)
        os.lseek(self.channel.log, _MARK, os.SEEK_SET)
        self._streams = (_text_stream(1), _text_stream(2))
        sys.stdout, sys.stderr = self._streams
        sys.stdin = self._input
        self._identities = [*map(_identity, _STREAMS)]

    def is_silent(self) -> bool:
        """Flush the streams. Return True if they are the worker's own and the log is empty."""
        out, err = self._streams
        if not self._has_own_streams():
            return False
        try:
            out.flush()
            err.flush()
            return (
                lseek(0, 0, os.SEEK_CUR)
                == lseek(1, 0, os.SEEK_CUR)
                == lseek(2, 0, os.SEEK_CUR)
                == _MARK
            )
        except (ValueError, OSError):
            return False

    def _has_own_streams(self) -> bool:
        """Return whether the objects of `sys` are the worker's own, with their usual settings."""
        out, err = self._streams
        return (
            sys.stdout is out
            and sys.stderr is err
            and sys.stdin is self._input
            and (out.errors, err.errors) == (_ERRORS, _ERRORS)
            and (out.encoding, err.encoding) == (_ENCODING, _ENCODING)
        )

    def _has_streams(self) -> bool:
        try:
            return (
                self._has_own_streams()
                and not any(stream.closed for stream in self._streams)
                and [*map(_identity, _STREAMS)] == self._identities
            )
        except (ValueError, OSError):
            return False


def _next_descriptor() -> int:
    """Return the lowest unused file descriptor. It grows if steps leave files open."""
    descriptor = dup(0)
    close(descriptor)
    return descriptor


def _identity(descriptor: int) -> tuple[int, int]:
    """Return the device and inode of an open file. Raises OSError if the file is closed."""
    seen = fstat(descriptor)
    return seen.st_dev, seen.st_ino


def _text_stream(descriptor: int) -> IO[str]:
    return os.fdopen(
        descriptor, "w", buffering=1, encoding=_ENCODING, errors=_ERRORS, closefd=False
    )


_worker = _Worker()


def begin_confined() -> None:
    """Record the settings of this child process of a worker, to restore them after each input.

    It loses the memory that it shares with the process of the shard: outcomes are read from there.
    """
    _worker.channel.close_memory()
    _worker.record_settings()


def restore_confined() -> bool:
    """Restore this child process of a worker after an input. Return False if it must end.

    The log keeps its text, because the worker reads and clears it.
    """
    try:
        if not _worker.is_silent():
            _worker.restore_streams()
            lseek(_worker.channel.log, 0, os.SEEK_END)
        _worker.restore_settings()
    except (BrokenWorkerError, OSError):
        return False
    return True


def begin_worker(
    number: int,
    *,
    channels: Sequence[WorkerChannel],
    barrier: StartBarrier,
    parent: int,
    keeps_memory: bool,
    sockets: Path | None,
) -> None:
    """Prepare this process as a worker. This is the DataLoader's `worker_init_fn`.

    Args:
        number: The worker's number, and the position of its channel in `channels`.
        channels: The channels of all workers of the DataLoader.
        barrier: Delays the first input until the watchdog has started.
        parent: The pid of the process that runs the shard.
        keeps_memory: True to keep the memory that a step frees for its next arrays.
        sockets: The folder for the sockets that transfer tensors; None for steps without batches.
    """
    for other in channels:
        if other is not channels[number]:
            other.close()
    _worker.begin(channels[number], parent, keeps_memory=keeps_memory, sockets=sockets)
    barrier.wait()
