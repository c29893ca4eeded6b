"""The torch Dataset whose items are the inputs of a plain step or the samples of a batch step."""

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from batchmill.outcome import Outcome, UnstoredOutcome
from batchmill.workers.control import SharedBatches, SharedFlag, StopIndex
from batchmill.workers.loaded_batches import Sample
from batchmill.workers.pipeline import MAX_BYTES, MAX_TRANSFERS, TransferPipeline
from batchmill.workers.worker import this_worker

# The pause before a look for batches that another worker has taken ahead.
_AHEAD_SECONDS = 0.02

# The item of an input that did not begin.
SKIPPED = -1


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
    loads_samples: bool = False

    def __getitems__(self, indices: Sequence[int]) -> list[int | Sample]:
        """Execute the inputs of a batch.

        With a pipeline, files are moved while steps run. Then the worker takes its batches from
        `batches`, so that it knows the next batch in time. `indices` are further inputs.
        """
        if self.pipeline is None or self.batches is None:
            this_worker.end_if_retiring()
            return [self[index] for index in indices]
        try:
            batch = self.pipeline.begin_batch(indices, self.batches)
            # Otherwise, a worker without a batch would use up turns without a pause.
            while not batch and self.batches.are_ahead and not self.drain.is_set():
                time.sleep(_AHEAD_SECONDS)
            items = [self[index] for index in batch]
            self.pipeline.end_batch(is_last=self.drain.is_set())
        except BaseException:  # noqa: BLE001
            this_worker.exit_broken()
        return items

    def __getitem__(self, index: int) -> int | Sample:
        if self.drain.is_set():
            return SKIPPED
        if self.pipeline:
            self.pipeline.uploads.wait(MAX_TRANSFERS, MAX_BYTES)
        if this_worker.channel.is_retiring and not self.loads_samples:
            if self.pipeline:
                self.pipeline.uploads.wait()
            this_worker.retire()
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
                this_worker.restore_after_sample(unused=unused)
                this_worker.channel.leave()
                return outcome
            if isinstance(outcome, UnstoredOutcome):
                if not self.pipeline:
                    raise TypeError("run returned an UnstoredOutcome, but there is no pipeline")
                self.pipeline.uploads.add(index, outcome)
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
                    self.pipeline.uploads.wait(shows=False)
            this_worker.exit_broken()
        return index
