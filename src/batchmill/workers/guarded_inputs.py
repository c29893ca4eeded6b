"""The torch Dataset whose items are the inputs of a plain step or the samples of a batch step."""

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from batchmill.outcome import Outcome, UnstoredOutcome
from batchmill.workers.control import SharedFlag, SharedTurns
from batchmill.workers.loaded_batches import Sample
from batchmill.workers.pipeline import MAX_BYTES, MAX_TRANSFERS, TransferPipeline
from batchmill.workers.worker import this_worker

_POLL_SECONDS = 0.005
# A worker fetches at most this fraction of the inputs that are left for it.
_AHEAD_PART = 4
# A worker takes inputs for about this time.
_PART_SECONDS = 0.05

# The item of an input that did not begin.
SKIPPED = -1


@dataclass(kw_only=True)
class GuardedInputs:
    """A map-style torch Dataset that runs inputs in a worker and sends outcomes to its channel.

    A worker takes its inputs from `turns` by itself. An item is only the input's index, so the
    DataLoader loses no outcome when a worker dies. If the step `has_batches`, the item is the
    sample. If the sample is lost, the input is loaded again. With a `pipeline`, files are moved
    while steps run.
    """

    run: Callable[[int], Outcome | UnstoredOutcome | Sample]
    drain: SharedFlag
    turns: SharedTurns
    batch_size: int
    workers: int = 1
    has_batches: bool = False
    pipeline: TransferPipeline | None = None
    # The time that the last inputs took, in seconds for each. The first one may take long.
    _seconds: float = 1.0

    def __getitems__(self, _: Sequence[int]) -> list[int | Sample]:
        """Execute the next inputs. Return their items; none if no input is left."""
        try:
            if self.pipeline and this_worker.channel.is_retiring:
                self.pipeline.end()
            this_worker.end_if_retiring()
            batch = self._next_batch()
            begun = time.perf_counter()
            items = [self[index] for index in batch]
            self._seconds = (time.perf_counter() - begun) / max(1, len(batch))
            if self.pipeline and self.drain.is_set():
                self.pipeline.end()
        except BaseException:  # noqa: BLE001
            this_worker.exit_broken()
        return items

    def _next_batch(self) -> Sequence[int]:
        """Wait for inputs, and take them. Return nothing if this worker must begin none."""
        while not (self.drain.is_set() or this_worker.channel.is_retiring):
            left = self.turns.left
            most = self.batch_size
            if not self.has_batches:
                # Other workers may be idle soon, so a worker takes only a short time's work.
                share = max(1, left // self.workers)
                most = min(most, share, 1 + int(_PART_SECONDS / (self._seconds + 1e-9)))
            if self.pipeline:
                # Fewer are fetched ahead at the end, so that all workers end at the same time.
                ahead = left // (_AHEAD_PART * self.workers) if self.workers > 1 else left
                batch = self.pipeline.next(most, ahead, self.turns)
            else:
                batch = [index for index, _ in self.turns.take(most)]
            if batch:
                return batch
            if self.pipeline:
                self.pipeline.uploads.wait()
            time.sleep(_POLL_SECONDS)
        return ()

    def __getitem__(self, index: int) -> int | Sample:
        if self.drain.is_set() or (this_worker.channel.is_retiring and not self.has_batches):
            return SKIPPED
        if self.pipeline:
            self.pipeline.uploads.wait(MAX_TRANSFERS, MAX_BYTES)
        try:
            this_worker.channel.show(index)
            # Check again, now that the channel shows the input. The shard's process sets the flag,
            # and reads the channels afterwards. It must see every input that begins, because it
            # kills workers that seem idle.
            if self.drain.is_set():
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
