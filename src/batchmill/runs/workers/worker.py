"""The process of a DataLoader worker: its start, its end, and what is restored after each input."""

import faulthandler
import logging
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.util import Finalize

# Imported by name: a step may replace functions of the module.
from os import chdir, getcwd, lseek
from pathlib import Path
from typing import NoReturn

from batchmill.core.storage.obstore_s3 import use_obstore
from batchmill.runs.workers.memory_usage import keep_freed_memory, offer_to_oom_killer
from batchmill.runs.workers.private_api import raw_environment, use_socket_folder
from batchmill.runs.workers.process_state import BrokenWorkerError, ProcessState, WorkerStreams
from batchmill.runs.workers.processes import (
    adopt_orphans,
    children,
    end_with_parent,
    kill_descendants,
)
from batchmill.runs.workers.stop_flags import SharedFlag
from batchmill.runs.workers.worker_channel import WorkerChannel

DUMP_SIGNAL = signal.SIGUSR1


class Worker:
    """The state of a worker process."""

    channel: WorkerChannel
    # The processes that an async step has started while it was opened.
    own_children: frozenset[int] = frozenset()
    # No other living process of the shard has this name. The process of the shard is "main".
    name = "main"

    def begin(
        self,
        number: int,
        *,
        channels: Sequence[WorkerChannel],
        started: SharedFlag,
        parent: int,
        keeps_memory: bool,
        sockets: Path | None,
    ) -> None:
        """Prepare this process as a worker. This is the DataLoader's `worker_init_fn`.

        Args:
            number: The worker's number, and the position of its channel in `channels`.
            channels: The channels of all workers of the DataLoader.
            started: Set when the watchdog has started. The first input waits for it.
            parent: The pid of the process that runs the shard.
            keeps_memory: True to keep the memory that a step frees for its next arrays.
            sockets: The folder for the sockets that transfer tensors; None for steps without
                batches.
        """
        channel = channels[number]
        for other in channels:
            if other is not channel:
                other.close()
        use_obstore()
        self.name = str(number)
        self.channel = channel
        os.setsid()
        # A daemon may not start processes, but a step may. The worker kills them at its end.
        multiprocessing.current_process().daemon = False
        if sockets:
            use_socket_folder(sockets)
        end_with_parent(parent)
        adopt_orphans()
        offer_to_oom_killer()
        if keeps_memory:
            keep_freed_memory()
        channel.enter()
        try:
            self._folder = getcwd()
        except FileNotFoundError:
            self._folder = ""  # The working directory was removed, so it cannot be restored.
        self.streams = WorkerStreams(channel.log)
        for name in (None, *logging.root.manager.loggerDict):
            logging.getLogger(name).handlers = []
        # No level is given, because the module of the step may have set one before the fork.
        logging.basicConfig(stream=sys.stderr)
        # faulthandler writes the stack even while a step holds the interpreter's lock. Ray may have
        # enabled it already. Only a new `enable` replaces the handlers of torch.
        faulthandler.disable()
        faulthandler.enable(channel.log, all_threads=False)
        faulthandler.register(DUMP_SIGNAL, channel.log, all_threads=False)
        # The first finalizer runs before multiprocessing waits for child processes. The second runs
        # when the queue to the parent is empty.
        Finalize(None, kill_descendants, exitpriority=1000)
        Finalize(None, self.end, exitpriority=-1000)
        self.record_settings()
        started.wait()

    def after_dump(self, handler: Callable[..., None]) -> None:
        """Call a function after faulthandler has written the stack on request of the watchdog."""
        faulthandler.unregister(DUMP_SIGNAL)
        signal.signal(DUMP_SIGNAL, handler)
        faulthandler.register(DUMP_SIGNAL, self.channel.log, all_threads=False, chain=True)

    @contextmanager
    def setting_up(self) -> Iterator[None]:
        """Open or close the step in this block. Its changes of settings stay for all inputs."""
        self.channel.begin_setup()
        try:
            yield
        finally:
            self.record_settings()
            self.channel.enter()
            self.own_children = frozenset(children(os.getpid()))
            self.channel.end_setup()

    def record_settings(self) -> None:
        """Record the environment and the settings, to restore them after each input."""
        self._environ = os.environ
        self._environment = dict(raw_environment())
        self._state = ProcessState()

    def restore(self, *, unused: bool) -> None:
        """Restore the streams, unless they are unused, and the settings after an input.

        Raises BrokenWorkerError if that is impossible.
        """
        if not unused:
            self.streams.restore()
            self.streams.clear_log()
        self.restore_settings()

    def restore_settings(self, *, open_files: int = 0) -> None:
        """Restore the working directory, the environment and the settings of the process.

        Raises BrokenWorkerError if that is impossible, or if steps have left too many files open.
        Inputs in progress may have `open_files`.
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
        if not self._state.restore(open_files):
            raise BrokenWorkerError

    def end(self) -> NoReturn:
        """Kill all processes that steps started, and exit without the parent's exit handlers.

        Prefect's exit handlers would wait for threads that do not exist in a fork. After an
        exception, another worker replaces this one. If it is a fault of the engine, its traceback
        ends the log.
        """
        error = sys.exc_info()[1]
        if error and not isinstance(error, BrokenWorkerError):
            with suppress(OSError):
                os.write(self.channel.log, traceback.format_exc().encode(errors="replace"))
        kill_descendants()
        os._exit(1 if error else 0)


this_worker = Worker()


def begin_confined() -> None:
    """Record the settings of this child process of a worker, to restore them after each input.

    It loses the memory that it shares with the process of the shard: outcomes are read from there.
    """
    this_worker.channel.close_memory()
    this_worker.record_settings()


def restore_confined() -> bool:
    """Restore this child process of a worker after an input. Return False if it must end.

    The log keeps its text, because the worker reads and clears it.
    """
    try:
        if not this_worker.streams.are_unused():
            this_worker.streams.restore()
            lseek(this_worker.channel.log, 0, os.SEEK_END)
        this_worker.restore_settings()
    except (BrokenWorkerError, OSError):
        return False
    return True
