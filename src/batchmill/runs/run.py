"""One run over a dataset, from its lease to its summary; who executes its shards is not said."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from batchmill.execution.shard import Shard
from batchmill.ledger.lease import Lease, lease
from batchmill.ledger.ledger import Ledger
from batchmill.maintenance.cleanup import (
    compact,
    record_touched,
    remove_orphans,
    remove_replaced,
    remove_withdrawn,
)
from batchmill.maintenance.verify import REPORT
from batchmill.planning.batching import Batching, Cores, Layout, plan_shards
from batchmill.planning.job import Prepared, plan_again
from batchmill.planning.partition_assignment import forget_earlier, record_assignment
from batchmill.planning.run_spec import partitions_of, write_run_plan
from batchmill.policy import FailurePolicy
from batchmill.runs.context import report_run
from batchmill.runs.node_check import Probe
from batchmill.runs.summary import Summary, summarise


@dataclass(kw_only=True)
class Run:
    """A run that holds its dataset: `divide` it, execute its shards, `finalize`, publish, `end`.

    Whoever executes the shards says how many `task_runs` there were, and whether some were `lost`.
    """

    prepared: Prepared
    number: int
    lease: Lease
    _begun: float = field(default_factory=time.time)
    task_runs: int = 0
    lost: bool = False

    @property
    def ledger(self) -> Ledger:
        """The dataset's ledger."""
        return self.prepared.ledger

    @property
    def pending(self) -> int:
        """The number of inputs to execute."""
        return len(self.prepared.plan.pending)

    def divide(
        self, batching: Batching, cores: Cores, policy: FailurePolicy
    ) -> tuple[Layout, list[Shard]]:
        """Divide what is pending into shards, and write the plan that they read."""
        layout = plan_shards(
            self.prepared.plan.pending["size"].to_numpy(),
            batching,
            cores,
            whole_batches=self.prepared.step.is_batched,
        )
        write_run_plan(self.prepared, self.number, layout, policy, self.lease.token)
        if not self.pending:
            return layout, []
        return layout, [
            Shard(
                dataset=self.prepared.job.output,
                run=self.number,
                number=number,
                total=layout.shards,
                start=start,
                stop=stop,
            )
            for number, (start, stop) in enumerate(pairwise(layout.bounds), 1)
        ]

    def divide_nothing(self, policy: FailurePolicy) -> None:
        """Write the plan of a run that has nothing to execute, for who reads it later."""
        self.divide(Batching(), Cores(total=1, node=1), policy)

    def probe(self) -> Probe:
        """Return what a machine needs to know to tell whether it could run the shards."""
        return Probe(dataset=self.prepared.job.output, run=self.number, token=self.lease.token)

    def finalize(self, *, prune: bool = False) -> None:
        """Record what needs no execution, and remove what is there no more.

        With `prune`, withdrawn inputs, too.

        Raises LedgerError if another run has taken the dataset over.
        """
        self.lease.check()
        # Before the tables: what was dealt and published is never dealt again.
        if self.prepared.job.partitioning:
            manifest, how = self.prepared.manifest, self.prepared.job.partitioning
            record_assignment(self.ledger, self.number, manifest, how)
        record_touched(self.ledger, self.number, self.prepared.plan, self.prepared.manifest.inputs)
        if self.pending:
            remove_replaced(self.ledger, self.number)
        if prune:
            remove_withdrawn(self.ledger, self.number, self.prepared.plan.withdrawn)

    @property
    def report_is_stale(self) -> bool:
        """Whether there is more to tell than what the dataset's report tells."""
        changed = self.pending or len(self.prepared.plan.withdrawn) or not self.lease.clean
        before = self.ledger.read_summary(self.number - 1) or {}
        changed = changed or before.get("partitions", {}) != partitions_of(self.prepared)
        return bool(changed) or REPORT not in self.ledger.store.names("")

    def end(self) -> Summary:
        """Tidy the ledger up, and record how the run ended; returns it."""
        compact(self.ledger, self.number)
        summary = summarise(self.ledger, self.number)
        # What was not committed may have files in place that the next run's outcomes do not name.
        self.lease.clean_end = summary.pending == 0 and not self.lost
        seconds = round(time.time() - self._begun, 3)
        self.ledger.write_summary(
            self.number, summary.as_json() | {"task_runs": self.task_runs, "seconds": seconds}
        )
        forget_earlier(self.ledger)
        return summary


@contextmanager
def open_run(prepared: Prepared, *, wait: bool = False) -> Iterator[Run]:
    """Begin a run; the dataset is its own for as long as the block.

    What a killed run has left is swept up, and if the ledger has changed since, the manifest is
    read again and the plan made anew.
    With `wait`, waits for the end of another run. Raises LedgerError if there is one, and what
    `prepare` raises.
    """
    ledger = prepared.ledger
    ledger.create()
    with lease(ledger, wait=wait) as held:
        if not held.clean:
            remove_orphans(ledger)
        prepared = plan_again(prepared)
        number = 1 + max(ledger.runs(), default=0)
        report_run(number)
        ledger.steps.record(prepared.step.identity, prepared.step.description)
        yield Run(prepared=prepared, number=number, lease=held)
