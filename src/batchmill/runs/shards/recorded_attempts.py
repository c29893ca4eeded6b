"""Records the attempts at unfinished inputs of a shard, so that they outlive its process."""

import time
from dataclasses import replace
from typing import Any

from batchmill.core.ledger.run_control import RunControl
from batchmill.runs.shards.shard_inputs import ShardInputs
from batchmill.runs.workers.inputs_in_progress import History, InputTable


class RecordedAttempts:
    """The attempts at the inputs of a shard, in the ledger.

    Args:
        control: The control files of the dataset's runs.
        inputs: The inputs of the shard.
        table: The state of these inputs.
    """

    def __init__(self, control: RunControl, inputs: ShardInputs, table: InputTable) -> None:
        self._control = control
        self._inputs = inputs
        self._table = table
        self._recorded: dict[int, tuple[Any, ...]] = {}
        # The clocks of two processes or machines differ, so times since 1970 are recorded.
        self._shift = time.time() - time.monotonic()

    def record(self, *, may_die: bool = True) -> None:
        """Record the attempts, if they have changed. Raises StoreError.

        If the process may die before the next call, the only input left has ended it.
        """
        unfinished = self._table.unfinished()
        if may_die and self._inputs.shard.left == 1 and len(self._table):
            seen = unfinished.get(0, History())
            unfinished[0] = replace(seen, faults=seen.faults + 1)
        rows, shift = self._inputs.plan_rows, self._shift
        attempts = {rows[index]: seen.as_tuple(shift) for index, seen in unfinished.items()}
        if attempts != self._recorded:
            self._recorded = attempts
            self._control.record_attempts(self._inputs.spec.run, self._inputs.shard.key, attempts)

    def resume(self) -> None:
        """Take over the attempts that earlier processes of the shard have recorded."""
        known = self._control.read_attempts(self._inputs.spec.run)
        histories = {
            index: History(*known[row])
            for index, row in enumerate(self._inputs.plan_rows)
            if row in known
        }
        for seen in histories.values():
            seen.due = seen.due and max(seen.due - self._shift, time.monotonic())
        self._table.resume(histories)
