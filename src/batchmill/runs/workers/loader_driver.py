"""Drives one DataLoader: starts its workers, processes their batches, and reports dead workers."""

import logging
import os
import queue
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from batchmill.core.outcome import RETRIED_KINDS, Outcome, UnstoredOutcome
from batchmill.runs.workers.async_inputs import Concurrency, ConcurrentInputs
from batchmill.runs.workers.batch_processor import BatchProcessor
from batchmill.runs.workers.guarded_inputs import GuardedInputs
from batchmill.runs.workers.input_feed import Feed
from batchmill.runs.workers.inputs_in_progress import LoaderPass
from batchmill.runs.workers.loaded_batches import Batch, BatchCallbacks, Sample
from batchmill.runs.workers.loader_context import WorkerContext
from batchmill.runs.workers.memory_usage import kernel_oom_kills
from batchmill.runs.workers.pipeline import TransferPipeline
from batchmill.runs.workers.private_api import start_workers
from batchmill.runs.workers.processes import ChildProcess
from batchmill.runs.workers.stop_flags import SharedFlag, Stop
from batchmill.runs.workers.watchdog import Limits, Watchdog
from batchmill.runs.workers.worker import this_worker
from batchmill.runs.workers.worker_channel import WorkerChannel
from batchmill.runs.workers.worker_exit import WorkerExit, exit_of

logger = logging.getLogger(__name__)

# A worker has this number of batches, with the one that it loads.
_BATCHES_PER_WORKER = 2


@dataclass(kw_only=True)
class ShardWork:
    """How the inputs of a shard are executed. Each one is identified by its index.

    Attributes:
        count: The number of inputs.
        run: Executes one input in a worker, and never raises. With `processing`, it may return a
            sample instead of an outcome.
        lost: Returns the outcome of an input whose worker died.
        deliver: Receives each final outcome once, several at a time, also from other threads.
        limits: The limits of one input.
        retries: How often an input is executed again after a failure.
        retried: The kinds of outcomes that are such failures.
        warn: Called with a warning about a worker, also from other threads.
        stop: The request to stop. After it, inputs without an outcome stay without one.
        processing: The functions that process samples; None if `run` returns only outcomes.
        pipeline: Moves remote files while steps run. Without it, `run` may not return an
            `UnstoredOutcome`.
        concurrency: Runs several inputs at a time in each worker, instead of `run`. None if the
            step is not async.
        imported: The files of libraries that workers have imported are added to it.
    """

    count: int
    run: Callable[[int], Outcome | UnstoredOutcome | Sample]
    lost: Callable[[int, WorkerExit], Outcome]
    deliver: Callable[[Sequence[Outcome]], None]
    limits: Limits
    retries: int
    retried: Collection[str] = RETRIED_KINDS
    warn: Callable[[str], None] = logger.warning
    stop: Stop = field(default_factory=Stop)
    processing: BatchCallbacks | None = None
    pipeline: TransferPipeline | None = None
    concurrency: Concurrency | None = None
    imported: set[str] = field(default_factory=set)


@dataclass(kw_only=True)
class LoaderDriver:
    """One DataLoader, from its start to its end.

    Attributes:
        work: How inputs are executed.
        inputs: The inputs of this pass.
        feed: Lets workers begin them.
        receive: Called with outcomes, from the watchdog's thread.
        processor: Processes batches of samples. None if the step has no batches.
        sockets: The folder for the sockets that transfer tensors.
    """

    work: ShardWork
    inputs: LoaderPass
    feed: Feed
    receive: Callable[[Sequence[tuple[int, Outcome]]], None]
    processor: BatchProcessor | None
    sockets: Path | None
    _drain: SharedFlag = field(default_factory=SharedFlag)
    _has_died: bool = False

    def drive(self) -> list[WorkerExit]:
        """Run the DataLoader until all its workers have ended.

        Returns:
            How workers ended that were killed, that executed an input, or that died.
        """
        oom_kills = kernel_oom_kills()
        with ExitStack() as stack:
            channels = self._make_channels()
            for channel in channels:
                stack.callback(channel.close)
            context = WorkerContext(len(channels), self.processor)
            stack.callback(context.results.release)
            started = SharedFlag()
            batches = self._start_workers(context, channels, started)
            workers = [ChildProcess(process.pid or 0) for process in context.workers]
            watchdog = Watchdog(
                channels=channels,
                workers=workers,
                limits=self.work.limits,
                drain=self._drain,
                stop_request=self.work.stop,
                receive=self.receive,
                warn=self.work.warn,
                feed=self.feed.advance,
                is_waiting=lambda: context.results.is_waiting,
            )
            watchdog.start()
            started.set()
            try:
                self._process_batches(batches)
            finally:
                # They have ended, or the run was cancelled, or `receive` has failed.
                for process, worker in zip(context.workers, workers, strict=True):
                    worker.kill_tree()
                    worker.close()
                    process.join()
                watchdog.stop()
            return self._exits(context, channels, watchdog.killed, oom_kills)

    def _make_channels(self) -> list[WorkerChannel]:
        """Return a channel for each worker."""
        work, concurrency = self.inputs, self.work.concurrency
        slots = concurrency.inputs if concurrency and not work.alone else 1
        size = 1 if concurrency else work.batch_size
        workers = max(1, min(work.num_workers, -(-len(work.indices) // size)))
        return [WorkerChannel(slots) for _ in range(workers)]

    def _start_workers(
        self, context: WorkerContext, channels: Sequence[WorkerChannel], started: SharedFlag
    ) -> Iterator[Batch]:
        """Fork the workers, and return the iterator of their DataLoader."""
        with warnings.catch_warnings():
            # torch warns if there are more workers than cores. That is the user's choice, for
            # steps that wait.
            warnings.simplefilter("ignore", UserWarning)
            loader: DataLoader[Batch] = DataLoader(
                self._dataset(channels),
                batch_size=None,  # The items are batches.
                collate_fn=_unchanged,
                num_workers=len(channels),
                prefetch_factor=_BATCHES_PER_WORKER,
                # One slow input must not delay the batches behind it.
                in_order=False,
                # Measured in a Ray worker: the first item arrives after 0.1 s with fork, and after
                # 1 to 2 s with other start methods.
                multiprocessing_context=context,
                worker_init_fn=partial(
                    this_worker.begin,
                    channels=channels,
                    started=started,
                    parent=os.getpid(),
                    # With a memory limit, memory that the worker keeps would count for its next
                    # input.
                    keeps_memory=self.work.limits.memory_bytes is None,
                    sockets=self.sockets,
                ),
            )
            return start_workers(loader)

    def _dataset(self, channels: Sequence[WorkerChannel]) -> ConcurrentInputs | GuardedInputs:
        if self.work.concurrency:
            return ConcurrentInputs(
                concurrency=self.work.concurrency,
                timeout_seconds=self.work.limits.timeout_seconds,
                slots=channels[0].slots,
                drain=self._drain,
                turns=self.feed.turns,
            )
        return GuardedInputs(
            run=self.work.run,
            pipeline=self.work.pipeline,
            drain=self._drain,
            turns=self.feed.turns,
            batch_size=self.inputs.batch_size,
            workers=len(channels),
            collate=self.processor.callbacks.collate if self.processor else None,
        )

    def _process_batches(self, batches: Iterator[Batch]) -> None:
        """Process batches until all workers have ended. If one dies, the others begin no input."""
        while True:
            try:
                sent = next(batches)
            except StopIteration:
                return
            except RuntimeError as error:
                # torch has checked its workers because `Results.get` raised this error.
                if not isinstance(error.__cause__, queue.Empty):
                    raise error.__cause__ or error from None
                self._has_died = True
                self._drain.set()
                continue
            batch = sent.load()
            if batch and self.processor:
                self.processor.process(batch, self._drain)

    def _exits(
        self,
        context: WorkerContext,
        channels: Sequence[WorkerChannel],
        killed: Mapping[int, WorkerExit],
        oom_kills: int,
    ) -> list[WorkerExit]:
        exits = []
        for number, (channel, process) in enumerate(zip(channels, context.workers, strict=True)):
            slots = [slot for slot in channel.in_use if slot.has_begun]
            log = channel.log_tail()
            if number in killed:
                exits.append(replace(killed[number], log=log))
            elif slots or (process.exitcode and self._has_died):
                seconds = time.monotonic() - min((slot.started for slot in slots), default=0.0)
                worker_exit = exit_of(process.exitcode, lambda: kernel_oom_kills() > oom_kills)
                begun = tuple(slot.input for slot in slots)
                exits.append(replace(worker_exit, log=log, seconds=seconds, begun=begun))
        return exits


def _unchanged(batch: Any) -> Any:
    return batch
