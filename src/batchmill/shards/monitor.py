"""Watches the ledger for requests to stop a running shard, or to split off inputs from it."""

from batchmill.ledger.ledger import Ledger
from batchmill.shards.inputs import ShardInputs
from batchmill.workers import IsolatedExecutor, Stop


class ShardMonitor:
    """Applies requests from the ledger to a running shard."""

    def __init__(
        self, ledger: Ledger, inputs: ShardInputs, stop: Stop, executor: IsolatedExecutor
    ) -> None:
        self._ledger = ledger
        self._inputs = inputs
        self._stop = stop
        self._executor = executor
        self._is_split = False

    def on_tick(self) -> None:
        """Check for requests. The committer's thread calls this."""
        control = self._ledger.control
        run, key = self._inputs.spec.run, self._inputs.shard.key
        if control.stop_requested(run):
            self._stop.request()
        if not self._is_split and control.split_requested(run, key):
            self._is_split = True
            boundary = self._executor.shorten()
            control.record_split(run, key, self._inputs.plan_row(boundary))
