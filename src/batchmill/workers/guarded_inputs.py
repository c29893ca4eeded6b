"""The torch Dataset of a DataLoader worker: runs inputs and sends their outcomes."""

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from batchmill.outcome import Outcome
from batchmill.workers.batches import Batch, IndexedSample, Sample, gather_batch
from batchmill.workers.shared_flags import DrainFlag, StopIndex
from batchmill.workers.worker import this_worker

SKIPPED = -1


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
            if outcome.kind != "ok" and this_worker.streams.has_log():
                outcome = outcome._replace(log=this_worker.channel.log_tail())
            this_worker.channel.finish(index, outcome)
            this_worker.restore(unused=unused)
        except BaseException:  # noqa: BLE001
            # The step has broken its worker. End only the worker, not the shard.
            this_worker.exit_broken()
        return index


@dataclass(frozen=True)
class Collate:
    """The DataLoader's collate function for samples. It runs in a worker."""

    collate: Callable[[list[Any]], Any]

    def __call__(self, items: Sequence[int | IndexedSample]) -> Batch:
        """Collate the samples that the worker has loaded."""
        return gather_batch(items, collate=self.collate, channel=this_worker.channel)
