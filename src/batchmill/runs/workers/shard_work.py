"""The settings of a shard for the code that drives its workers."""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from batchmill.core.outcome import RETRIED_KINDS, Outcome, UnstoredOutcome
from batchmill.runs.workers.async_inputs import Concurrency
from batchmill.runs.workers.control import Stop
from batchmill.runs.workers.loaded_batches import BatchCallbacks, Sample
from batchmill.runs.workers.pipeline import TransferPipeline
from batchmill.runs.workers.watchdog import Limits
from batchmill.runs.workers.worker_exit import WorkerExit

logger = logging.getLogger(__name__)


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
