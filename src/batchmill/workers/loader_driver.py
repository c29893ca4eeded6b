"""Drives one DataLoader: starts its workers, receives their batches, and reports dead workers."""

import os
import signal
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from batchmill.outcome import Outcome, UnstoredOutcome
from batchmill.workers.async_inputs import Concurrency, ConcurrentInputs
from batchmill.workers.batch_processor import BatchProcessor
from batchmill.workers.batches import make_batches
from batchmill.workers.control import (
    Pace,
    SharedBatches,
    SharedFlag,
    SharedTurns,
    Stop,
    StopIndex,
    WorkerContext,
)
from batchmill.workers.guarded_inputs import GuardedInputs
from batchmill.workers.input_table import InputTable, LoaderPass
from batchmill.workers.loaded_batches import Sample, gather_batch
from batchmill.workers.memory_usage import kernel_oom_kills
from batchmill.workers.pipeline import TransferPipeline
from batchmill.workers.private_api import (
    LoaderIterator,
    WorkerDiedError,
    without_torch_sigchld_handler,
)
from batchmill.workers.processes import ChildProcess, ends_within
from batchmill.workers.watchdog import Limits, Watchdog
from batchmill.workers.worker import this_worker
from batchmill.workers.worker_channel import WorkerChannel
from batchmill.workers.worker_exit import WorkerExit, exit_of

_POLL_SECONDS, _END_SECONDS = 0.02, 1.0
# A worker has this number of batches, with the one that it executes.
_BATCHES_PER_WORKER = 2


@dataclass(kw_only=True)
class LoaderDriver:
    """One DataLoader, from its start to its end. There is one worker for each channel.

    `run` executes one input in a worker, and `pipeline` moves its files. The watchdog's thread
    calls `receive` with outcomes, and `warn` with warnings. `lost` receives how workers ended. The
    driver takes due retries from `table`. With `weights`, each input of the shard has a weight;
    None gives batches of equal length.
    """

    work: LoaderPass
    channels: Sequence[WorkerChannel]
    run: Callable[[int], Outcome | UnstoredOutcome | Sample]
    pipeline: TransferPipeline | None
    concurrency: Concurrency | None
    receive: Callable[[Sequence[tuple[int, Outcome]]], None]
    warn: Callable[[str], None]
    lost: Callable[[WorkerExit], None]
    table: InputTable
    pace: Pace
    limits: Limits
    stop: Stop
    stop_index: StopIndex
    processor: BatchProcessor | None
    weights: NDArray[np.int64] | None
    sockets: Path | None
    _drain: SharedFlag = field(default_factory=SharedFlag)
    _started: SharedFlag = field(default_factory=SharedFlag)
    _unfed: deque[int] = field(default_factory=deque)

    def drive(self) -> None:
        """Run the DataLoader until it is exhausted or a worker has died.

        `lost` is called for each worker that died.
        """
        oom_kills = kernel_oom_kills()
        work = SharedTurns(len(self.table)) if self.concurrency else self._shared_batches()
        self._unfed.extend(self.work.indices)
        with closing(work), self._start_workers(work) as batches:
            processes = list(batches.workers)
            workers = [ChildProcess(process.pid) for process in processes]
            watchdog = Watchdog(
                channels=self.channels,
                workers=workers,
                limits=self.limits,
                drain=self._drain,
                stop_request=self.stop,
                receive=self.receive,
                warn=self.warn,
                feed=partial(self._feed, work) if isinstance(work, SharedTurns) else lambda: None,
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
                exits = self._exits(processes, watchdog.killed, oom_kills, has_died=has_died)
                for worker_exit in exits:
                    self.lost(worker_exit)
                if self.processor:
                    self.processor.finish()

    def _feed(self, turns: SharedTurns) -> None:
        """Let workers of an async step begin the inputs whose turn has come; retries first."""
        now = time.monotonic()
        self._unfed.extendleft(reversed(self.table.give_due(now)))
        ready = []
        while self._unfed:
            if self.stop_index.excludes(self._unfed[0]):
                self._unfed.popleft()
                continue
            turn = self.pace.next_turn(now)
            if turn is None:
                break
            ready.append((self._unfed.popleft(), turn))
        turns.put(ready)
        if self.table.pass_is_over:
            self._drain.set()

    @contextmanager
    def _start_workers(self, shared: SharedBatches | SharedTurns) -> Iterator[LoaderIterator]:
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

    def _inputs(self, shared: SharedBatches | SharedTurns) -> Any:
        """Return the inputs as a torch Dataset."""
        if self.concurrency and isinstance(shared, SharedTurns):
            return ConcurrentInputs(
                concurrency=self.concurrency,
                slots=self.channels[0].slots,
                drain=self._drain,
                stop_index=self.stop_index,
                turns=shared,
            )
        return GuardedInputs(
            run=self.run,
            drain=self._drain,
            stop_index=self.stop_index,
            pipeline=self.pipeline,
            batches=cast("SharedBatches", shared),
            loads_samples=self.processor is not None,
        )

    def _collate(self) -> Callable[[Any], Any]:
        if not self.processor:
            return list  # Without samples, a batch is the list of its indices.
        return partial(gather_batch, collate=self.processor.callbacks.collate)

    def _shared_batches(self) -> SharedBatches:
        """Divide the inputs into batches, which the workers share."""
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
        return SharedBatches(batches, len(self.channels))

    def _turns(self, shared: SharedBatches | SharedTurns) -> Iterator[Sequence[int]]:
        """Yield the inputs of each batch. Retries that are due come first.

        With a pipeline or an async step, workers take their batches by themselves. Then only
        retries are yielded, perhaps none. A list of retries lets a worker execute one batch, or all
        batches if the step is async. The DataLoader gives each worker _BATCHES_PER_WORKER lists,
        and another one when the worker has executed a batch. The last lists are for the batches
        that workers have taken ahead.
        """
        if isinstance(shared, SharedTurns):
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
        return [] if self.processor else self.table.give_due(time.monotonic())

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
        if self.processor:
            self.processor.finish()

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
        *,
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
