"""Runs one shard: executes its inputs in a DataLoader, and commits their outcomes."""

import time
import uuid
from collections.abc import Callable, Mapping
from typing import NamedTuple

from batchmill.execution.staging import PackSettings, open_staging
from batchmill.ledger.ledger import Ledger
from batchmill.outcome import Outcome
from batchmill.shards.inputs import ShardInputs
from batchmill.shards.shard import Shard
from batchmill.storage import open_store


class ShardResult(NamedTuple):
    """The number of a shard's inputs by outcome, and how long the shard took in seconds."""

    outcomes: Mapping[str, int]
    seconds: float


def run_shard(
    shard: Shard, on_outcome: Callable[[Outcome], None] | None = None, *, place: str = ""
) -> ShardResult:
    """Execute the inputs of a shard and commit their outcomes.

    If the run stops early (on request or by its failure policy), some inputs have no outcome.
    Outcomes that were committed before an error stay committed.

    Args:
        shard: The shard.
        on_outcome: Called with each outcome.
        place: The node that `place_of` returns for this shard.

    Raises:
        StepError: The step cannot be loaded on this machine.
        LedgerError: The ledger cannot be read or written.
        StoreError: The dataset cannot be read or written, or no folder for temporary files exists.
    """
    # Importing torch takes a second. Only processes that run shards need it.
    from batchmill.shards.execution import ShardExecution
    from batchmill.workers.orphans import ending_orphans
    from batchmill.workers.worker import worker_name

    started = time.perf_counter()
    ledger = Ledger(open_store(shard.dataset))
    if place:
        ledger.control.record_node(shard.run, shard.key, place)
    inputs = ShardInputs.read(ledger, shard)
    attempt = uuid.uuid4().hex[:12]
    prefix = f"{shard.run:06d}-{attempt}"
    limit = inputs.spec.pack_bytes
    with (
        ending_orphans(),
        open_staging(
            ledger.store,
            attempt,
            fetches=inputs.are_remote,
            confines=inputs.spec.confinement is not None,
            packs=PackSettings(prefix, limit, worker_name) if limit else None,
            reserved=inputs.reserved_keys,
        ) as staging,
    ):
        execution = ShardExecution(ledger, inputs, staging, on_outcome)
        outcomes = execution.run(prefix)
    return ShardResult(outcomes, time.perf_counter() - started)
