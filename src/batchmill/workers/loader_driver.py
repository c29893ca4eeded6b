"""Drives one DataLoader: starts its workers, receives their batches, and reports dead workers."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchmill.outcome import Outcome, UnstoredOutcome
from batchmill.workers.batch_processor import BatchProcessor
from batchmill.workers.batches import Sample
from batchmill.workers.concurrent_inputs import Concurrency, ConcurrentInputs
from batchmill.workers.control import SharedBatches, SharedFlag, StartBarrier, Stop, StopIndex
from batchmill.workers.dataloader import (
    BATCHES_PER_WORKER,
    GuardedInputs,
    collate_samples,
    iterating,
    wait_until_idle,
)
from batchmill.workers.input_queue import InputQueue, LoaderPass, make_batches
from batchmill.workers.memory import kernel_oom_kills
from batchmill.workers.pipeline import TransferPipeline
from batchmill.workers.private_api import LoaderIterator, WorkerDiedError
from batchmill.workers.processes import ChildProcess
from batchmill.workers.watchdog import BatchMonitor, Limits, Watchdog
from batchmill.workers.worker import this_worker
from batchmill.workers.worker_channel import WorkerChannel
from batchmill.workers.worker_exit import WorkerExit, exit_of


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
    monitor: BatchMonitor
    processor: BatchProcessor | None
    weights: NDArray[np.int64] | None
    sockets: Path | None
    _drain: SharedFlag = field(default_factory=SharedFlag)
    _barrier: StartBarrier = field(default_factory=StartBarrier)
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
                self.monitor,
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

    def _start_workers(self, shared: SharedBatches) -> AbstractContextManager[LoaderIterator]:
        inputs: GuardedInputs | ConcurrentInputs
        if self.concurrency:
            inputs = ConcurrentInputs(
                concurrency=self.concurrency,
                slots=self.channels[0].slots,
                drain=self._drain,
                stop_index=self.stop_index,
                batches=shared,
            )
            turns: Iterator[Sequence[int]] = iter([()] * len(self.channels))
        else:
            inputs = GuardedInputs(
                run=self.run,
                drain=self._drain,
                stop_index=self.stop_index,
                pipeline=self.pipeline,
                batches=shared if self.pipeline else None,
            )
            turns = self._turns(shared) if self.pipeline else self._with_retries(shared)
        return iterating(
            inputs,
            turns,
            len(self.channels),
            # Without samples, a batch is the list of its indices.
            partial(collate_samples, self.processor.callbacks.collate) if self.processor else list,
            partial(
                this_worker.begin,
                channels=self.channels,
                barrier=self._barrier,
                parent=os.getpid(),
                # With a memory limit, memory that the worker keeps would count for its next input.
                keeps_memory=self.limits.memory_bytes is None,
                sockets=self.sockets,
            ),
            self.processor,
        )

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

    def _with_retries(self, shared: SharedBatches) -> Iterator[Sequence[int]]:
        """Yield the inputs of each batch. Retries that are due come first."""
        while batch := shared.take():
            if due := self._due():
                yield due
            yield batch

    def _turns(self, shared: SharedBatches) -> Iterator[Sequence[int]]:
        """Yield the retries that are due, perhaps none. Workers take their batches by themselves.

        Each list of retries lets a worker execute one batch. The DataLoader gives each worker
        BATCHES_PER_WORKER lists, and another one when the worker has executed a batch. The last
        lists are for the batches that workers have taken ahead.
        """
        for _ in range(BATCHES_PER_WORKER * len(self.channels)):
            yield self._due()
        while shared.left or shared.are_ahead:
            yield self._due()

    def _due(self) -> Sequence[int]:
        """Return the retries that are due.

        Each input of a batch step belongs to one batch, so its retries run after all batches.
        """
        return [] if self.processor or self.work.alone else self.queue.add_due()

    def _receive_batches(self, batches: LoaderIterator) -> None:
        """Start the workers, and process their batches. Raises WorkerDiedError."""
        self._barrier.open(len(self.channels))
        for batch in batches:
            if self.processor and batch.indices:
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
        wait_until_idle(self.channels, processes)
        batches.end()
        watchdog.stop()
        for process, worker in zip(processes, workers, strict=True):
            worker.kill_tree()  # It may not have received the message to end.
            worker.close()
            process.join()

    def _exits(
        self, processes: Sequence[Any], watchdog: Watchdog, killed_by_kernel: Callable[[], bool]
    ) -> list[WorkerExit]:
        reasons = watchdog.kill_reasons
        return [
            exit_of(channel, process.exitcode, reasons.get(number), killed_by_kernel)
            for number, (channel, process) in enumerate(zip(self.channels, processes, strict=True))
            if number in reasons
            or any(index in self.queue for index in channel.in_progress)
            or (process.exitcode and self._worker_died)
        ]
