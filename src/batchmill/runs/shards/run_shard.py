"""Runs one shard: executes its inputs in a DataLoader, and commits their outcomes."""

import resource
import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.run_control import Usage
from batchmill.core.outcome import Outcome
from batchmill.core.storage import open_store
from batchmill.core.storage.pack_writer import PackWriter
from batchmill.runs.inputs.result_rows import RESERVED_KEYS, RESERVED_WITH_PARTITIONS
from batchmill.runs.inputs.staging import open_staging
from batchmill.runs.shards.shard import Shard
from batchmill.runs.shards.shard_inputs import ShardInputs
from batchmill.runs.shards.step_log import StepLines, StepLog


class ShardResult(NamedTuple):
    """The number of a shard's inputs by outcome, and how long the shard took in seconds."""

    outcomes: Mapping[str, int]
    seconds: float


def run_shard(
    shard: Shard,
    on_outcome: Callable[[Outcome], None] | None = None,
    *,
    place: str = "",
    on_lines: Callable[[StepLines], None] | None = None,
) -> ShardResult:
    """Execute the inputs of a shard and commit their outcomes.

    If the run stops early (on request or by its failure policy), some inputs have no outcome.
    Outcomes that were committed before an error stay committed.

    Args:
        shard: The shard.
        on_outcome: Called with each outcome.
        place: The node that `place_of` returns for this shard.
        on_lines: Called with the lines of the step's log, if the shard has `log_steps`.

    Raises:
        StepError: The step cannot be loaded on this machine.
        LedgerError: The ledger cannot be read or written.
        StoreError: The dataset cannot be read or written, or no folder for temporary files exists.
    """
    # Importing torch takes a second. Only processes that run shards need it.
    from batchmill.runs.shards.shard_execution import ShardExecution
    from batchmill.runs.workers.orphans import ending_orphans
    from batchmill.runs.workers.worker import this_worker

    started = time.perf_counter()
    ledger = Ledger(open_store(shard.dataset))
    if place:
        ledger.control.record_node(shard.run, shard.key, place)
    inputs = ShardInputs(ledger, shard)
    attempt = uuid.uuid4().hex[:12]
    prefix = f"{shard.run:06d}-{attempt}"
    limit = inputs.spec.options.execution.pack_bytes
    make_packs = partial(PackWriter, prefix=prefix, limit=limit, worker=lambda: this_worker.name)
    with (
        ending_orphans(),
        open_staging(
            ledger.store,
            attempt,
            fetches=inputs.are_remote,
            confines=inputs.spec.confinement is not None,
            make_packs=make_packs if limit else None,
            reserved=RESERVED_WITH_PARTITIONS if inputs.spec.has_partitions else RESERVED_KEYS,
        ) as staging,
    ):
        log = StepLog(on_lines) if shard.log_steps and on_lines else None
        execution = ShardExecution(ledger, inputs, staging, on_outcome, log, on_lines)
        before = _usage()
        outcomes = execution.run(prefix)
        if log:
            log.end()
        if inputs.spec.unsampled:
            used = _usage()
            usage = used._replace(cpu_seconds=used.cpu_seconds - before.cpu_seconds)
            ledger.control.record_usage(shard.run, shard.key, usage)
    return ShardResult(outcomes, time.perf_counter() - started)


def _usage() -> Usage:
    """Return the CPU time of this process and its ended workers, and the memory of the largest."""
    process = resource.getrusage(resource.RUSAGE_SELF)
    workers = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Usage(
        cpu_seconds=process.ru_utime + process.ru_stime + workers.ru_utime + workers.ru_stime,
        memory_bytes=workers.ru_maxrss * 1024,
    )
