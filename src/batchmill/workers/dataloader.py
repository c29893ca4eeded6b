"""The DataLoader whose workers run inputs, and its torch Dataset. Reports when a worker dies."""

import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch.utils.data import DataLoader

from batchmill.outcome import Outcome, UnstoredOutcome
from batchmill.workers.batches import IndexedSample, Sample, SentBatch, gather_batch
from batchmill.workers.control import SharedBatches, SharedFlag, StopIndex, WorkerContext
from batchmill.workers.pipeline import TransferPipeline
from batchmill.workers.private_api import IdleWork, LoaderIterator, without_torch_sigchld_handler
from batchmill.workers.worker import this_worker
from batchmill.workers.worker_channel import WorkerChannel

_POLL_SECONDS = 0.02
# A worker has this number of batches, with the one that it executes.
BATCHES_PER_WORKER = 2


@dataclass(frozen=True, kw_only=True)
class GuardedInputs:
    """A map-style torch Dataset that runs inputs in a worker and sends outcomes to its channel.

    An item is only the input's index, so the DataLoader loses no outcome when a worker dies. In a
    batch step, the item is the sample. If the sample is lost, the input is loaded again.
    """

    run: Callable[[int], Outcome | UnstoredOutcome | Sample]
    drain: SharedFlag
    stop_index: StopIndex
    pipeline: TransferPipeline | None = None
    batches: SharedBatches | None = None

    def __getitems__(self, indices: Sequence[int]) -> list[int | IndexedSample]:
        """Execute the inputs of a batch.

        With a pipeline, files are moved while steps run. Then the worker takes its batches from
        `batches`, so that it knows the next batch in time. `indices` are further inputs.
        """
        if self.pipeline is None or self.batches is None:
            return [self[index] for index in indices]
        try:
            number = int(this_worker.name)
            batch = self.pipeline.begin_batch(indices, self.batches, number, this_worker.channel)
            # Otherwise, a worker without a batch would use up turns without a pause.
            while not batch and self.batches.are_ahead and not self.drain.is_set():
                time.sleep(_POLL_SECONDS)
            items = [self[index] for index in batch]
            self.pipeline.end_batch(is_last=self.drain.is_set())
        except BaseException:  # noqa: BLE001
            this_worker.exit_broken()
        return items

    def __getitem__(self, index: int) -> int | IndexedSample:
        if self.drain.is_set():
            return SKIPPED
        if self.pipeline:
            self.pipeline.make_room()
        if self.stop_index.excludes(index):
            return SKIPPED
        try:
            this_worker.channel.begin(index)
            # Check again, now that the channel shows the input. The shard's process sets the flag
            # or the index, and reads the channels afterwards. It must see every input that begins,
            # because it kills workers that seem idle.
            if self.drain.is_set() or self.stop_index.excludes(index):
                this_worker.channel.leave()
                return SKIPPED
            outcome = self.run(index)
            # Do this first, because a timer of the step may expire at any moment.
            signal.setitimer(signal.ITIMER_REAL, 0)
            unused = this_worker.streams.are_unused()
            if isinstance(outcome, Sample):
                # Restore before `leave`: if the worker is broken, its channel must show this input.
                this_worker.restore(unused=unused)
                this_worker.channel.leave()
                return IndexedSample(index, outcome)
            if isinstance(outcome, UnstoredOutcome):
                if not self.pipeline:
                    raise TypeError("run returned an UnstoredOutcome, but there is no pipeline")
                self.pipeline.store(index, outcome)
                this_worker.channel.leave()
                this_worker.restore(unused=unused)
                return index
            if outcome.kind != "ok" and this_worker.streams.has_log():
                outcome = outcome._replace(log=this_worker.channel.log_tail())
            this_worker.channel.finish(index, outcome)
            this_worker.restore(unused=unused)
        except BaseException:  # noqa: BLE001
            # The step has broken its worker. End only the worker, not the shard.
            if self.pipeline:
                with suppress(Exception):
                    self.pipeline.wait_in_place()
            this_worker.exit_broken()
        return index


def collate_samples(
    collate: Callable[[list[Any]], Any], items: Sequence[int | IndexedSample]
) -> SentBatch:
    """Collate the samples that this worker has loaded."""
    return gather_batch(items, collate=collate, channel=this_worker.channel)


@contextmanager
def iterating(
    inputs: Any,
    batches: Iterator[Sequence[int]],
    num_workers: int,
    collate: Callable[[Any], Any],
    begin: Callable[[int], None],
    idle_work: IdleWork | None = None,
) -> Iterator[LoaderIterator]:
    """Fork the workers of a DataLoader and yield its iterator. The caller must end the iterator.

    During the block, a worker's death raises an error only while the iterator waits for a batch.

    Args:
        inputs: The inputs, as a torch Dataset.
        batches: For each batch, the indices of its inputs. A batch is taken only when a worker
            needs it.
        num_workers: The number of worker processes, at least 1.
        collate: Collates a worker's items into a batch.
        begin: Called in each worker, with the worker's number, before its first input.
        idle_work: The work to do while no batch arrives.
    """
    with _sigchld_handlers() as handlers:
        with warnings.catch_warnings():
            # torch warns if there are more workers than cores. That is the user's choice, for
            # steps that wait.
            warnings.simplefilter("ignore", UserWarning)
            loader: DataLoader[Any] = DataLoader(
                inputs,
                batch_sampler=batches,  # type: ignore[arg-type]  # torch's types exclude ranges.
                num_workers=num_workers,
                prefetch_factor=BATCHES_PER_WORKER,
                collate_fn=collate,
                # One slow input must not delay the batches behind it.
                in_order=False,
                # Measured in a Ray worker: the first item arrives after 0.1 s with fork, and after
                # 1 to 2 s with other start methods.
                multiprocessing_context=WorkerContext(),
                worker_init_fn=begin,
            )
            with without_torch_sigchld_handler():
                iterator = LoaderIterator(loader)
        iterator.idle_work = idle_work
        handlers.append(iterator.on_child_exit)
        yield iterator


def wait_until_idle(channels: Sequence[WorkerChannel], processes: Sequence[Any]) -> None:
    """Wait until no living worker executes an input. The watchdog limits the time."""
    while any(
        channel.occupied and process.is_alive()
        for channel, process in zip(channels, processes, strict=True)
    ):
        time.sleep(_POLL_SECONDS)


@contextmanager
def _sigchld_handlers() -> Iterator[list[Callable[[int, FrameType | None], None]]]:
    """Yield the list of functions to call when a child process ends.

    They replace the previous handler of SIGCHLD. Outside the main thread the list has no effect,
    because Python runs signal handlers only in the main thread.
    """
    handlers: list[Callable[[int, FrameType | None], None]] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        for handler in handlers:
            handler(number, frame)

    if threading.current_thread() is not threading.main_thread():
        yield handlers
        return
    previous = signal.signal(signal.SIGCHLD, on_signal)
    try:
        yield handlers
    finally:
        # `signal.signal` returns None if the previous handler was not installed from Python.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL if previous is None else previous)


SKIPPED = -1
