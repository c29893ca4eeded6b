"""Drives one DataLoader: starts its workers, receives their batches, and reports dead workers."""

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from torch.utils.data import DataLoader

from batchmill.outcome import Outcome
from batchmill.workers.async_inputs import ConcurrentInputs
from batchmill.workers.batch_processor import BatchProcessor
from batchmill.workers.control import SharedFlag, WorkerContext
from batchmill.workers.feed import Feed
from batchmill.workers.guarded_inputs import GuardedInputs
from batchmill.workers.loaded_batches import gather_batch
from batchmill.workers.memory_usage import kernel_oom_kills
from batchmill.workers.private_api import (
    LoaderIterator,
    WorkerDiedError,
    without_torch_sigchld_handler,
)
from batchmill.workers.processes import ChildProcess, ends_within
from batchmill.workers.shard_work import ShardWork
from batchmill.workers.watchdog import Watchdog
from batchmill.workers.worker import this_worker
from batchmill.workers.worker_channel import WorkerChannel
from batchmill.workers.worker_exit import WorkerExit, exit_of

_POLL_SECONDS, _END_SECONDS = 0.02, 1.0
# A worker has this number of batches, with the one that it executes.
_BATCHES_PER_WORKER = 2


@dataclass(kw_only=True)
class LoaderDriver:
    """One DataLoader, from its start to its end. There is one worker for each channel.

    Attributes:
        work: How inputs are executed.
        batch_size: The most inputs of a batch.
        channels: The channels of the workers.
        feed: The inputs of this pass.
        receive: Called with outcomes, from the watchdog's thread.
        worker_lost: Called for each worker that died.
        processor: Processes batches of samples. None if the step has no batches.
        sockets: The folder for the sockets that transfer tensors.
    """

    work: ShardWork
    batch_size: int
    channels: Sequence[WorkerChannel]
    feed: Feed
    receive: Callable[[Sequence[tuple[int, Outcome]]], None]
    worker_lost: Callable[[WorkerExit], None]
    processor: BatchProcessor | None
    sockets: Path | None
    _drain: SharedFlag = field(default_factory=SharedFlag)
    _started: SharedFlag = field(default_factory=SharedFlag)

    def drive(self) -> None:
        """Run the DataLoader until it is exhausted or a worker has died."""
        oom_kills = kernel_oom_kills()
        with self._start_workers() as batches:
            processes = list(batches.workers)
            workers = [ChildProcess(process.pid) for process in processes]
            watchdog = Watchdog(
                channels=self.channels,
                workers=workers,
                limits=self.work.limits,
                drain=self._drain,
                stop_request=self.work.stop,
                receive=self.receive,
                warn=self.work.warn,
                feed=self.feed.advance,
                is_waiting=lambda: batches.is_waiting,
            )
            watchdog.start()
            has_died = False
            try:
                self._receive_batches(batches)
            except WorkerDiedError:
                has_died = True
            except BaseException:  # The run was cancelled, or `deliver` failed.
                for worker in workers:
                    worker.kill_tree()
                raise
            finally:
                self._end_workers(batches, processes, workers, watchdog)
            for worker_exit in self._exits(processes, watchdog.killed, oom_kills, has_died):
                self.worker_lost(worker_exit)

    @contextmanager
    def _start_workers(self) -> Iterator[LoaderIterator]:
        """Fork the workers, and yield the iterator of their DataLoader. The caller must end it.

        During the block, a worker's death raises an error only while the iterator waits for a
        batch.
        """
        with warnings.catch_warnings(), without_torch_sigchld_handler():
            # torch warns if there are more workers than cores. That is the user's choice, for
            # steps that wait.
            warnings.simplefilter("ignore", UserWarning)
            loader: DataLoader[Any] = DataLoader(
                self._inputs(),
                batch_sampler=self._requests(),  # type: ignore[arg-type]  # torch's types exclude ranges.
                num_workers=len(self.channels),
                prefetch_factor=_BATCHES_PER_WORKER,
                collate_fn=self._collate(),
                # One slow input must not delay the batches behind it.
                in_order=False,
                # Measured in a Ray worker: the first item arrives after 0.1 s with fork, and after
                # 1 to 2 s with other start methods.
                multiprocessing_context=WorkerContext(),
                worker_init_fn=partial(
                    this_worker.begin,
                    channels=self.channels,
                    started=self._started,
                    parent=os.getpid(),
                    # With a memory limit, memory that the worker keeps would count for its next
                    # input.
                    keeps_memory=self.work.limits.memory_bytes is None,
                    sockets=self.sockets,
                ),
            )
            iterator = LoaderIterator(loader)
        iterator.idle_work = self.processor
        with _handling_sigchld(iterator.on_child_exit):
            yield iterator

    def _inputs(self) -> Any:
        """Return the inputs as a torch Dataset."""
        turns, concurrency = self.feed.turns, self.work.concurrency
        if concurrency:
            slots = self.channels[0].slots
            return ConcurrentInputs(
                concurrency=concurrency, slots=slots, drain=self._drain, turns=turns
            )
        return GuardedInputs(
            run=self.work.run,
            pipeline=self.work.pipeline,
            drain=self._drain,
            turns=turns,
            batch_size=self.batch_size,
            workers=len(self.channels),
            has_batches=self.processor is not None,
        )

    def _collate(self) -> Callable[[Any], Any]:
        if not self.processor:
            return list  # Without samples, a batch is the list of its indices.
        return partial(gather_batch, collate=self.processor.callbacks.collate)

    def _requests(self) -> Iterator[Sequence[int]]:
        """Yield requests for batches until no input is left. Workers choose the inputs."""
        while not self._drain.is_set():
            yield ()

    def _receive_batches(self, batches: LoaderIterator) -> None:
        """Start the workers, and process their batches. Raises WorkerDiedError."""
        self._started.set()
        for sent in batches:
            if not (self.processor and sent.indices):
                continue
            # The connection may end a moment before the process.
            batch = sent.load(partial(ends_within, batches.workers[sent.worker].pid, _END_SECONDS))
            self.channels[sent.worker].count_received()
            if batch:
                self.processor.process(batch, self._drain)

    def _end_workers(
        self,
        batches: LoaderIterator,
        processes: Sequence[Any],
        workers: Sequence[ChildProcess],
        watchdog: Watchdog,
    ) -> None:
        """Wait until the workers finish their current inputs. End them and the watchdog."""
        self._drain.set()
        # The watchdog limits the time.
        while any(
            channel.in_use and process.is_alive()
            for channel, process in zip(self.channels, processes, strict=True)
        ):
            time.sleep(_POLL_SECONDS)
        batches.end()
        watchdog.stop()
        for process, worker in zip(processes, workers, strict=True):
            worker.kill_tree()  # It may not have received the message to end.
            worker.close()
            process.join()

    def _exits(
        self,
        processes: Sequence[Any],
        killed: Mapping[int, WorkerExit],
        oom_kills: int,
        has_died: bool,
    ) -> list[WorkerExit]:
        """Return how workers ended that were killed, that executed an input, or that died."""
        exits = []
        for number, (channel, process) in enumerate(zip(self.channels, processes, strict=True)):
            slots = [slot for slot in channel.in_use if slot.has_begun]
            log = channel.log_tail()
            if number in killed:
                exits.append(replace(killed[number], log=log))
            elif slots or (process.exitcode and has_died):
                seconds = time.monotonic() - min((slot.started for slot in slots), default=0.0)
                found = exit_of(process.exitcode, lambda: kernel_oom_kills() > oom_kills)
                begun = tuple(slot.input for slot in slots)
                exits.append(replace(found, log=log, seconds=seconds, begun=begun))
        return exits


@contextmanager
def _handling_sigchld(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Call a function during the block when a child process ends.

    Outside the main thread this has no effect, because Python runs signal handlers only there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGCHLD, handler)
    try:
        yield
    finally:
        # `signal.signal` returns None if the previous handler was not installed from Python.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL if previous is None else previous)
