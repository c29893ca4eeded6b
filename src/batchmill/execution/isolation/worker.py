"""What happens in a DataLoader's worker: a step may do anything, and the next one starts afresh."""

import faulthandler
import logging
import mmap
import multiprocessing
import os
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.util import Finalize

# By name: a step may put functions of its own into the module.
from os import chdir, fstat, ftruncate, getcwd, lseek
from pathlib import Path
from typing import IO, Any

from batchmill.execution.isolation.allocator import keep_freed_memory
from batchmill.execution.isolation.batches import Batch, Sample, Taken, gather_batch
from batchmill.execution.isolation.memory import offer_to_oom_killer
from batchmill.execution.isolation.processes import (
    adopt_orphans,
    end_with_parent,
    kill_descendants,
)
from batchmill.execution.isolation.worker_channel import WorkerChannel, anonymous_file
from batchmill.outcome import Outcome

SKIPPED = -1
DUMP_SIGNAL = signal.SIGUSR1
# Where in its files an untouched worker stands: in no file that a step opens, or leaves behind.
# To look there takes a quarter of the time of asking which files they are.
_MARK = 0x6D696C6C
_STREAMS = (0, 1, 2)
_INDEX = struct.Struct("q")


class StartBarrier:
    """Holds workers back until all of them, and their watchdog, are there."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()

    def open(self, workers: int) -> None:
        """Let so many workers pass, and close the parent's side."""
        os.write(self._writer, b"." * workers)
        os.close(self._writer)
        os.close(self._reader)

    def pass_through(self) -> None:
        """Wait, in a worker, until the gate is open."""
        os.read(self._reader, 1)
        os.close(self._writer)
        os.close(self._reader)


class DrainFlag:
    """A flag that all workers see: finish the input at hand, begin no other."""

    def __init__(self) -> None:
        self._flag = mmap.mmap(-1, 1)

    def set(self) -> None:
        """Tell the workers."""
        self._flag[0] = 1

    def is_set(self) -> bool:
        """Whether the workers have been told."""
        return self._flag[0] == 1


class StopIndex:
    """The index from which on no input is begun, for all workers to see."""

    def __init__(self, index: int) -> None:
        self._index = mmap.mmap(-1, _INDEX.size)
        self.set(index)

    def set(self, index: int) -> None:
        """Move it; who has begun an input beyond it goes on with that."""
        _INDEX.pack_into(self._index, 0, index)

    def is_before(self, index: int) -> bool:
        """Whether an input lies beyond it."""
        return bool(_INDEX.unpack_from(self._index)[0] <= index)


@dataclass(frozen=True, kw_only=True)
class GuardedInputs:
    """A map-style Dataset that runs inputs in a worker and hands their outcomes to its station.

    Its items are no more than the inputs' indices, as a receipt: what the DataLoader loses when a
    worker dies is nothing but these. Of an input that has a sample instead of an outcome, it is
    that sample; the input is then loaded again.
    """

    indices: Sequence[int]
    run: Callable[[int], Outcome | Sample]
    drain: DrainFlag
    horizon: StopIndex

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, item: int) -> int | Taken:
        if self.drain.is_set():
            return SKIPPED
        index = self.indices[item]
        if self.horizon.is_before(index):
            return SKIPPED
        try:
            _worker.station.begin(index)
            # Once more: who asks for either must see in the stations all that pass here. A worker
            # that seems idle after the drain is killed.
            if self.drain.is_set() or self.horizon.is_before(index):
                _worker.station.leave()
                return SKIPPED
            outcome = self.run(index)
            signal.setitimer(signal.ITIMER_REAL, 0)  # First: what it left may go off at any moment.
            silent = _worker.is_silent()
            if isinstance(outcome, Sample):
                # First: what breaks its worker is to be known as the one that did.
                _worker.restore(silent=silent)
                _worker.station.leave()
                return Taken(index, outcome)
            if outcome.kind != "ok" and _worker.has_log():
                outcome = outcome._replace(log=_worker.station.log_tail())
            _worker.station.finish(index, outcome)
            _worker.restore(silent=silent)
        except BaseException:  # noqa: BLE001
            # The step has broken its worker: that ends it, and nothing else.
            _worker.give_up()
        return index


@dataclass(frozen=True)
class Collate:
    """The DataLoader's collate function for samples: makes a batch of them, in a worker."""

    collate: Callable[[list[Any]], Any]

    def __call__(self, items: Sequence[int | Taken]) -> Batch:
        """Collate what the worker has loaded."""
        return gather_batch(items, collate=self.collate, station=_worker.station)


class _Worker:
    """This process, as the worker that it is."""

    station: WorkerChannel

    def begin(
        self, station: WorkerChannel, parent: int, *, keeps_memory: bool, sockets: Path | None
    ) -> None:
        self.station = station
        self._pid = os.getpid()
        os.setsid()
        config = multiprocessing.current_process()._config  # type: ignore[attr-defined]
        # A step may use multiprocessing; what it leaves behind is killed at the end.
        config["daemon"] = False
        if sockets:
            config["tempdir"] = str(sockets)
        end_with_parent(parent)
        adopt_orphans()
        offer_to_oom_killer()
        if keeps_memory:
            keep_freed_memory()
        station.enter()
        self._nothing = anonymous_file("batchmill-stdin")
        os.lseek(self._nothing, _MARK, os.SEEK_SET)
        try:
            self._folder = getcwd()
        except FileNotFoundError:
            self._folder = ""  # Somebody has removed it; then there is nowhere to go back to.
        self._environ = os.environ
        self._environment = dict(_raw_environment())
        self._take_streams()
        for logger in [
            logging.getLogger(),
            *map(logging.getLogger, logging.root.manager.loggerDict),
        ]:
            logger.handlers = []
        logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
        # The stack is written even while a step holds the interpreter's lock.
        # Enabled already (Ray does it), it would not take the signals back that torch has taken.
        faulthandler.disable()
        faulthandler.enable(station.log, all_threads=False)
        faulthandler.register(DUMP_SIGNAL, station.log, all_threads=False)
        # First, what multiprocessing would wait for; last, when the queue to the parent is empty.
        Finalize(None, kill_descendants, (self._pid,), exitpriority=1000)
        Finalize(None, self.end, exitpriority=-1000)

    def restore(self, *, silent: bool) -> None:
        """Undo what a step may have done to this process, so that the next finds it as it was."""
        if not silent:
            if not self._has_streams():
                if not self._has_files():
                    self.give_up()
                self._take_streams()
            self._forget_log()
        try:
            moved = getcwd() != self._folder
        except FileNotFoundError:
            moved = True
        if moved and self._folder:
            chdir(self._folder)
        if os.environ is not self._environ:
            os.environ = self._environ  # noqa: B003
        if _raw_environment() != self._environment:
            os.environb.clear()
            os.environb.update(self._environment)

    def give_up(self) -> None:
        """End this worker; another one goes on from here."""
        kill_descendants(self._pid)
        os._exit(1)

    def has_log(self) -> bool:
        """Whether the log is still what it was: a step may have closed it, and opened others."""
        try:
            return _identity(self.station.log) == self._identities[1]
        except OSError:
            return False

    def _has_files(self) -> bool:
        try:
            return self.has_log() and _identity(self._nothing) == self._identities[0]
        except OSError:
            return False

    def _forget_log(self) -> None:
        if not self.has_log():
            self.give_up()
        ftruncate(self.station.log, 0)
        lseek(self.station.log, _MARK, os.SEEK_SET)

    def end(self) -> None:
        """Leave with all that steps have started, and without the parent's exit handlers.

        Those of Prefect would wait for threads that are not in a fork.
        """
        failed = sys.exc_info()[0] is not None
        if failed:
            traceback.print_exc()
        kill_descendants(os.getpid())
        os._exit(1 if failed else 0)

    def _take_streams(self) -> None:
        """Take the log as standard output and error.

        The parent's streams may have been locked by another thread at the moment of the fork, and
        then stay locked for ever: a worker that prints or logs would hang.
        """
        os.dup2(self._nothing, 0)
        os.dup2(self.station.log, 1)
        os.dup2(self.station.log, 2)
        os.lseek(self.station.log, _MARK, os.SEEK_SET)
        self._streams = (_text_stream(1), _text_stream(2))
        sys.stdout, sys.stderr = self._streams
        self._identities = [*map(_identity, _STREAMS)]

    def is_silent(self) -> bool:
        """Whether the streams are the worker's own, with nothing in the log; flushes them."""
        out, err = self._streams
        if sys.stdout is not out or sys.stderr is not err:
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

    def _has_streams(self) -> bool:
        try:
            return (
                (sys.stdout, sys.stderr) == self._streams
                and not any(stream.closed for stream in self._streams)
                and [*map(_identity, _STREAMS)] == self._identities
            )
        except (ValueError, OSError):
            return False


def _identity(descriptor: int) -> tuple[int, int]:
    """Return what tells an open file from any other. Raises OSError if it is closed."""
    seen = fstat(descriptor)
    return seen.st_dev, seen.st_ino


def _raw_environment() -> dict[bytes, bytes]:
    """Return the dict behind os.environ: to compare that itself decodes every variable anew."""
    raw: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
    return raw


def _text_stream(descriptor: int) -> IO[str]:
    return os.fdopen(
        descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
    )


_worker = _Worker()


def begin_worker(
    number: int,
    *,
    stations: Sequence[WorkerChannel],
    gate: StartBarrier,
    parent: int,
    keeps_memory: bool,
    sockets: Path | None,
) -> None:
    """Make this process the worker at its station; the DataLoader's `worker_init_fn`.

    One that `keeps_memory` has what a step frees ready for its next arrays. `sockets` is the folder
    for those by which it hands over tensors.
    """
    _worker.begin(stations[number], parent, keeps_memory=keeps_memory, sockets=sockets)
    gate.pass_through()
