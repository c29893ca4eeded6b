"""Run one shard: its inputs through a DataLoader, their outcomes into the ledger."""

import time
import uuid
from collections.abc import Callable, Mapping
from typing import NamedTuple

from batchmill.execution.shard import Shard
from batchmill.execution.shard_inputs import ShardInputs
from batchmill.execution.staging import open_staging
from batchmill.ledger.ledger import Ledger
from batchmill.outcome import Outcome
from batchmill.storage import open_store


class ShardResult(NamedTuple):
    """How many inputs of a shard had which outcome, and how long it took in seconds."""

    outcomes: Mapping[str, int]
    seconds: float


def run_shard(
    shard: Shard, on_outcome: Callable[[Outcome], None] | None = None, *, place: str = ""
) -> ShardResult:
    """Execute the inputs of a shard and commit their outcomes.

    If the run is asked to stop, or stops by its own policy, some inputs have no outcome. What was
    committed before an error stays committed.

    Args:
        shard: The shard.
        on_outcome: Called with each outcome.
        place: The node that `place_of` returns for this shard.

    Raises:
        StepError: The step cannot be loaded on this machine.
        LedgerError: The ledger cannot be read or written.
        StoreError: The dataset cannot be read or written, or there is no place for temporary files.
    """
    # torch takes a second to import. Only the processes that run shards need it.
    from batchmill.execution.shard_execution import ShardExecution

    started = time.perf_counter()
    ledger = Ledger(open_store(shard.dataset))
    if place:
        ledger.control.record_node(shard.run, shard.key, place)
    inputs = ShardInputs.read(ledger, shard)
    attempt = uuid.uuid4().hex[:12]
    with open_staging(
        ledger.store, attempt, fetches=inputs.are_remote, reserved=inputs.reserved_keys
    ) as staging:
        execution = ShardExecution(ledger, inputs, staging, on_outcome)
        outcomes = execution.run(f"{shard.run:06d}-{attempt}")
    return ShardResult(outcomes, time.perf_counter() - started)
