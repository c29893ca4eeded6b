"""One run over a dataset: its lease, its shards, its records, its summary.

The caller of a flow can pass its prepared job to the flow, in one process.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import pairwise

from batchmill.core.layout import REPORT, STAGING
from batchmill.core.ledger.lease import Lease, Wait, lease
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.manifest.records import listed_manifest, save_manifest
from batchmill.core.options.job_options import RunOptions
from batchmill.core.planning.advance import advance
from batchmill.core.planning.batching import Cores, Layout
from batchmill.core.planning.job import Job
from batchmill.core.planning.partition_assignment import without_withdrawn
from batchmill.core.planning.prepare import Prepared, plan_again, prepare
from batchmill.core.planning.run_spec import write_run_plan
from batchmill.core.storage import is_url
from batchmill.core.user_step.value.shipping import pickle_digest
from batchmill.datasets.maintenance.cleanup import (
    forget_released,
    forget_runs,
    remove_incomplete,
    remove_orphans,
    sweep,
)
from batchmill.datasets.maintenance.merging import with_merged_parts
from batchmill.datasets.publishing.run_summary import Summary, summarise
from batchmill.runs.node_check import Probe
from batchmill.runs.shards.shard import Shard
from batchmill.runs.shards.shard_inputs import pickled_step_name

# A flow's parameters are plain values, so a plan of a million inputs cannot be one of them. The
# caller has made it to show it to the user, and the flow need not make it again.
_handover: ContextVar[Prepared | None] = ContextVar("handover", default=None)


@dataclass(kw_only=True)
class Run:
    """A run that holds the dataset's lease. `execute` calls its methods."""

    prepared: Prepared
    number: int
    lease: Lease
    _begun: float = field(default_factory=time.monotonic)

    @property
    def ledger(self) -> Ledger:
        """The dataset's ledger."""
        return self.prepared.ledger

    @property
    def options(self) -> RunOptions:
        """The options of this run only."""
        return self.prepared.job.options.run

    @property
    def pending(self) -> int:
        """The number of inputs to execute."""
        return len(self.prepared.plan.pending)

    def divide(self, cores: Cores) -> tuple[Layout, list[Shard]]:
        """Divide the pending inputs into shards, and write the plan that the shards read."""
        layout = self.prepared.layout(cores)
        if self.prepared.forced_after is not None:
            self.ledger.control.record_forced(self.number, self.prepared.forced_after)
        step, manifest = self.prepared.step, self.prepared.manifest
        if manifest.in_memory:
            # Not before: a run that cannot begin must not change the inputs of the next one.
            place = listed_manifest(self.prepared.job.output)
            save_manifest(manifest, place, self.prepared.job.options.inputs.input_column)
        with ThreadPoolExecutor(1) as pool:
            recorded = pool.submit(self.ledger.record_step, step.identity, step.description)
            write_run_plan(self.prepared, self.number, layout, self.lease.token)
        recorded.result()
        if step.pickled:  # Also if nothing is executed: a proof of this version reads it.
            self.ledger.store.write(pickled_step_name(self.ledger, self.number), step.pickled)
        if not self.pending:
            return layout, []
        digest = pickle_digest(step.pickled)
        return layout, [
            Shard(
                dataset=self.prepared.job.output,
                run=self.number,
                number=number,
                total=layout.shards,
                start=start,
                stop=stop,
                pickle_digest=digest,
                log_steps=self.prepared.job.options.execution.log_level,
            )
            for number, (start, stop) in enumerate(pairwise(layout.bounds), 1)
        ]

    def probe(self) -> Probe:
        """Return the data that a machine needs to check whether it can run the shards."""
        return Probe(
            dataset=self.prepared.job.output,
            run=self.number,
            token=self.lease.token,
            pickle_digest=pickle_digest(self.prepared.step.pickled),
        )

    def finalize(self) -> None:
        """Advance the state by the outcomes and the options of this run.

        It is recorded when the tables are published, after this.

        Raises:
            LedgerError: Another run has taken the dataset's lease.
        """
        self.lease.ensure()
        prepared, outcomes = self.prepared, None
        if self.pending:
            # A node that seemed lost may still execute inputs. An outcome that it commits while the
            # tables are made could replace a result that they name, and `end` removes its files.
            self.ledger.control.close(self.number)
            outcomes = self.ledger.outcomes(self.number)
            if not is_url(self.ledger.store.url):
                # A step can write beside its folder: to `out/../../x`.
                self.ledger.store.remove(STAGING)
        state = advance(
            *(prepared.state, prepared.plan, prepared.manifest, outcomes),
            *(self.options, prepared.step.identity, prepared.libraries),
        )
        if not state.file:
            state = with_merged_parts(self.ledger, state, self.number)
        assignment = prepared.assignment
        if assignment and self.options.prune:
            assignment = without_withdrawn(assignment, prepared.manifest)
        self.prepared = replace(prepared, state=state, assignment=assignment)
        forget_released(self.ledger, state)

    @property
    def report_is_stale(self) -> bool:
        """True if the dataset's report does not show the state that this run has published."""
        changed = self.pending or self.number in self.ledger.snapshots.numbers()
        # A killed run may have recorded its snapshot, but not have written the report.
        return bool(changed) or not self.lease.clean or REPORT not in self.ledger.store.names("")

    def end(self, *, lost: bool = False, unpublished: str = "") -> Summary:
        """Record the run's summary, and return it. Remove old versions and old runs' folders.

        Args:
            lost: True if a process or machine was lost.
            unpublished: Why the run published nothing. Usually empty.
        """
        state = self.prepared.state
        summary = replace(summarise(self.ledger, self.number, state), unpublished=unpublished)
        # An input without a committed outcome may have files in the dataset that no outcome names.
        # The next run must remove them.
        self.lease.clean_end = summary.pending == 0 and not lost
        more = {
            "seconds": round(time.monotonic() - self._begun, 3),
            "pruned": self.options.prune,
            "accepted": summary.accepted(self.prepared.job.options.failures),
        }
        self.ledger.write_summary(self.number, summary.as_json() | more)
        # A run that publishes nothing removes no version, also not one that is too old.
        kept = None if unpublished else self.options.keep_versions
        sweep(self.ledger, state, self.number, kept)
        forget_runs(self.ledger, self.number)
        return summary


@contextmanager
def open_run(prepared: Prepared, *, wait: Wait | None = None) -> Iterator[Run]:
    """Begin a run, and hold the dataset's lease during the block.

    Removes the leftovers of a killed run. If the ledger has changed since `prepared` was created,
    or after a wait, the manifest is read again and the plan is made again.

    Args:
        prepared: The prepared job.
        wait: Wait for another run, with these actions. None: do not wait.

    Raises:
        LedgerError: Another run holds the lease. With `wait`, this is not raised.
        BatchmillError: Any error of `prepare`.
    """
    ledger = prepared.ledger
    is_new = ledger.create()
    with lease(ledger, wait=wait, is_new=is_new) as held:
        if not held.clean:
            remove_orphans(ledger)
        elif is_new:
            remove_incomplete(ledger.store)  # A run may have been killed while it made the dataset.
        with ledger.store.keeping_listings(), ThreadPoolExecutor(1) as pool:
            last = pool.submit(ledger.last_known_run)
            prepared = plan_again(prepared, always=held.has_waited)
            number = 1 + last.result()
        yield Run(prepared=prepared, number=number, lease=held)


@contextmanager
def handing_over(prepared: Prepared) -> Iterator[None]:
    """Make `prepare_once` return `prepared` for its job during the block."""
    token = _handover.set(prepared)
    try:
        yield
    finally:
        _handover.reset(token)


def prepare_once(job: Job) -> Prepared:
    """Return the caller's prepared job if it is the same job; otherwise prepare the job."""
    prepared = _handover.get()
    return prepared if prepared and prepared.job == job else prepare(job)
