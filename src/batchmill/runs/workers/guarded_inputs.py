"""The torch Dataset that executes the inputs of a plain step, or loads those of a batch step."""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torch.utils.data import IterableDataset

from batchmill.core.outcome import Outcome, UnstoredOutcome
from batchmill.runs.workers.input_feed import SharedTurns
from batchmill.runs.workers.loaded_batches import Batch, Sample, gather_batch
from batchmill.runs.workers.pipeline import MAX_BYTES, MAX_TRANSFERS, TransferPipeline
from batchmill.runs.workers.process_state import BrokenWorkerError
from batchmill.runs.workers.stop_flags import SharedFlag
from batchmill.runs.workers.worker import this_worker

_POLL_SECONDS = 0.005
# A worker fetches at most this fraction of the inputs that are left for it.
_AHEAD_PART = 4
# A worker takes inputs for about this time.
_PART_SECONDS = 0.05


@dataclass(kw_only=True, eq=False)
class GuardedInputs(IterableDataset[Batch]):
    """An iterable torch Dataset that runs inputs in a worker and sends outcomes to its channel.

    A worker takes its inputs from `turns` by itself. The items are batches of samples. Without
    `collate`, it has no item. If a batch is lost with its worker, its inputs are loaded again. With
    a `pipeline`, files are moved while steps run.
    """

    run: Callable[[int], Outcome | UnstoredOutcome | Sample]
    drain: SharedFlag
    turns: SharedTurns
    batch_size: int
    workers: int = 1
    collate: Callable[[list[Any]], Any] | None = None
    pipeline: TransferPipeline | None = None
    # The time that the last inputs took, in seconds for each. The first one may take long.
    _seconds: float = 1.0

    def __iter__(self) -> Iterator[Batch]:
        """Execute inputs until the shard has no further one. Yield the batches of their samples."""
        try:
            while indices := self._next_inputs():
                begun = time.perf_counter()
                samples = [sample for index in indices if (sample := self._execute(index))]
                self._seconds = (time.perf_counter() - begun) / len(indices)
                if samples and self.collate:
                    yield gather_batch(samples, self.collate)
            if self.pipeline:
                self.pipeline.end()
        except BaseException:  # noqa: BLE001
            # The step has broken its worker. End only the worker, not the shard.
            if self.pipeline:
                with suppress(Exception):
                    self.pipeline.uploads.wait(shows=False)
            this_worker.end()

    def _next_inputs(self) -> Sequence[int]:
        """Wait for inputs, and take them. Return nothing if this worker must begin none."""
        while not self.drain.is_set():
            left = self.turns.left
            most = self.batch_size
            if not self.collate:
                # Other workers may be idle soon, so a worker takes only a short time's work.
                share = max(1, left // self.workers)
                most = min(most, share, 1 + int(_PART_SECONDS / (self._seconds + 1e-9)))
            if self.pipeline:
                # Fewer are fetched ahead at the end, so that all workers end at the same time.
                ahead = left // (_AHEAD_PART * self.workers) if self.workers > 1 else left
                indices = self.pipeline.next(most, ahead, self.turns)
            else:
                indices = [index for index, _ in self.turns.take(most)]
            if indices:
                return indices
            if self.pipeline:
                self.pipeline.uploads.wait()
            time.sleep(_POLL_SECONDS)
        return ()

    def _execute(self, index: int) -> Sample | None:
        """Execute an input. Return its sample; None if it has an outcome, or did not begin."""
        channel, streams = this_worker.channel, this_worker.streams
        if self.drain.is_set():
            return None
        if self.pipeline:
            self.pipeline.uploads.wait(MAX_TRANSFERS, MAX_BYTES)
        channel.show(index)
        # Check again, now that the channel shows the input. The shard's process sets the flag, and
        # reads the channels afterwards. It must see every input that begins, because it kills
        # workers that seem idle.
        if self.drain.is_set():
            channel.leave()
            return None
        outcome = self.run(index)
        # Do this first, because a timer of the step may expire at any moment.
        signal.setitimer(signal.ITIMER_REAL, 0)
        unused = streams.are_unused()
        if isinstance(outcome, Outcome):
            if outcome.kind != "ok" and streams.has_log():
                outcome = outcome._replace(log=channel.log_tail())
            channel.finish(index, outcome)
        else:
            if isinstance(outcome, UnstoredOutcome):
                if not self.pipeline:
                    raise TypeError("run returned an UnstoredOutcome, but there is no pipeline")
                self.pipeline.uploads.add(index, outcome)
            channel.leave()
        try:
            this_worker.restore(unused=unused)
        except BrokenWorkerError:
            if not isinstance(outcome, Sample):
                raise
            self.drain.set()  # This worker ends when its samples have been received.
        return outcome if isinstance(outcome, Sample) else None
