"""Drives one DataLoader: starts its workers, receives their batches, and reports dead workers."""

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from batchmill.outcome import Outcome, UnstoredOutcome
from batchmill.workers.batch_processor import BatchProcessor
from batchmill.workers.control import (
    SharedBatches,
    SharedFlag,
    Stop,
    StopIndex,
    WorkerContext,
)
from batchmill.workers.input_queue import InputQueue, LoaderPass, make_batches
from batchmill.workers.loaded_batches import Sample, gather_batch
from batchmill.workers.memory_usage import kernel_oom_kills
from batchmill.workers.pipeline import TransferPipeline
from batchmill.workers.private_api import (
    LoaderIterator,
    WorkerDiedError,
    without_torch_sigchld_handler,
)
from batchmill.workers.processes import ChildProcess
from batchmill.workers.watchdog import Limits, Watchdog
from batchmill.workers.worker import this_worker
from batchmill.workers.worker_channel import WorkerChannel
from batchmill.workers.worker_exit import WorkerExit, exit_of
from batchmill.workers.worker_inputs import Concurrency, ConcurrentInputs, GuardedInputs

_POLL_SECONDS = 0.02
# A worker has this number of batches, with the one that it executes.
_BATCHES_PER_WORKER = 2


@dataclass(kw_only=True)
class LoaderDriver:
    """One DataLoader, from its start to its end. There is one worker for each channel.

    `run` executes one input in a worker, and `pipeline` moves its files. The watchdog's thread
    calls `receive` with outcomes. The driver takes due retries from `queue`, which has the inputs
    without a final outcome. With `weights`, each input of the shard has a weight; None gives
    batches of equal length.
    """

    work: LoaderPass
    channels: Sequence[WorkerChannel]
    run: Callable[[int], Outcome | UnstoredOutcome | Sample]
    pipeline: TransferPipeline | None
    concurrency: Concurrency | None
    receive: Callable[[Sequence[tuple[int, Outcome]]], None]
    queue: InputQueue
    limits: Limits
    stop: Stop
    stop_index: StopIndex
    processor: BatchProcessor | None
    weights: NDArray[np.int64] | None
    sockets: Path | None
    _drain: SharedFlag = field(default_factory=SharedFlag)
    _started: SharedFlag = field(default_factory=SharedFlag)
    _worker_died: bool = False

    def drive(self) -> list[WorkerExit]:
        """Run the DataLoader until it is exhausted or a worker has died.

        Returns:
            The workers that died during an input, or whose death ended the DataLoader.
        """
        oom_kills = kernel_oom_kills()
        with (
            closing(SharedBatches(self._batches(), len(self.channels))) as shared,
            self._start_workers(shared) as batches,
        ):
            processes = list(batches.workers)
            workers = [ChildProcess(process.pid) for process in processes]
            watchdog = Watchdog(
                self.channels,
                workers,
                self.limits,
                self._drain,
                self.stop,
                self.receive,
                self.processor.monitor if self.processor else None,
            )
            watchdog.start()
            try:
                self._receive_batches(batches)
            except WorkerDiedError:
                self._worker_died = True
            except BaseException:  # The run was cancelled, or `deliver` failed.
                for worker in workers:
                    worker.kill_tree()
                raise
            finally:
                self._end_workers(batches, processes, workers, watchdog)
        return self._exits(processes, watchdog, lambda: kernel_oom_kills() > oom_kills)

    @contextmanager
    def _start_workers(self, shared: SharedBatches) -> Iterator[LoaderIterator]:
        """Fork the workers, and yield the iterator of their DataLoader. The caller must end it.

        During the block, a worker's death raises an error only while the iterator waits for a
        batch.
        """
        with warnings.catch_warnings(), without_torch_sigchld_handler():
            # torch warns if there are more workers than cores. That is the user's choice, for
            # steps that wait.
            warnings.simplefilter("ignore", UserWarning)
            loader: DataLoader[Any] = DataLoader(
                self._inputs(shared),
                batch_sampler=self._turns(shared),  # type: ignore[arg-type]  # torch's types exclude ranges.
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
                    keeps_memory=self.limits.memory_bytes is None,
                    sockets=self.sockets,
                ),
            )
            iterator = LoaderIterator(loader)
        iterator.idle_work = self.processor
        with _handling_sigchld(iterator.on_child_exit):
            yield iterator

    def _inputs(self, shared: SharedBatches) -> Any:
        """Return the inputs as a torch Dataset."""
        if self.concurrency:
            return ConcurrentInputs(
                concurrency=self.concurrency,
                slots=self.channels[0].slots,
                drain=self._drain,
                stop_index=self.stop_index,
                batches=shared,
            )
        return GuardedInputs(
            run=self.run,
            drain=self._drain,
            stop_index=self.stop_index,
            pipeline=self.pipeline,
            batches=shared,
        )

    def _collate(self) -> Callable[[Any], Any]:
        if not self.processor:
            return list  # Without samples, a batch is the list of its indices.
        return partial(gather_batch, collate=self.processor.callbacks.collate)

    def _batches(self) -> list[Sequence[int]]:
        """Divide the inputs into batches."""
        indices = self.work.indices
        weights = (
            np.ones(len(indices), np.int64) if self.weights is None else self.weights[list(indices)]
        )
        ranges = make_batches(
            weights,
            self.work.batch_size,
            len(self.channels),
            even=self.weights is not None,
            shrinking=self.pipeline is not None,
        )
        batches: list[Sequence[int]] = []
        for batch in ranges:
            first, last = indices[batch[0]], indices[batch[-1]]
            # A worker receives a range in fewer bytes than a list.
            is_range = last - first == len(batch) - 1
            batches.append(range(first, last + 1) if is_range else [indices[i] for i in batch])
        return batches

    def _turns(self, shared: SharedBatches) -> Iterator[Sequence[int]]:
        """Yield the inputs of each batch. Retries that are due come first.

        With a pipeline or an async step, workers take their batches by themselves. Then only
        retries are yielded, perhaps none. A list of retries lets a worker execute one batch, or all
        batches if the step is async. The DataLoader gives each worker _BATCHES_PER_WORKER lists,
        and another one when the worker has executed a batch. The last lists are for the batches
        that workers have taken ahead.
        """
        if self.concurrency:
            yield from [()] * len(self.channels)
        elif self.pipeline:
            for _ in range(_BATCHES_PER_WORKER * len(self.channels)):
                yield self._due()
            while shared.left or shared.are_ahead:
                yield self._due()
        else:
            while batch := shared.take():
                if due := self._due():
                    yield due
                yield batch

    def _due(self) -> Sequence[int]:
        """Return the retries that are due.

        Each input of a batch step belongs to one batch, so its retries run after all batches.
        """
        return [] if self.processor or self.work.alone else self.queue.add_due()

    def _receive_batches(self, batches: LoaderIterator) -> None:
        """Start the workers, and process their batches. Raises WorkerDiedError."""
        self._started.set()
        for batch in batches:
            if self.processor and batch.indices:
                self.processor.process(batch, self._drain)
        if self.processor:
            self.processor.finish()  # Now, while the watchdog limits the time of the last batches.

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
            channel.occupied and process.is_alive()
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
        self, processes: Sequence[Any], watchdog: Watchdog, killed_by_kernel: Callable[[], bool]
    ) -> list[WorkerExit]:
        killed = watchdog.killed
        return [
            exit_of(channel, process.exitcode, killed.get(number), killed_by_kernel)
            for number, (channel, process) in enumerate(zip(self.channels, processes, strict=True))
            if number in killed
            or any(index in self.queue for index in channel.in_progress)
            or (process.exitcode and self._worker_died)
        ]


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
