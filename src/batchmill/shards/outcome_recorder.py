"""Records the outcomes of a shard: counts them, commits them, and reports them."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from batchmill.errors import LedgerError, StoreError
from batchmill.execution.failures import hide_in
from batchmill.ledger.committer import Committer
from batchmill.ledger.lease import is_held
from batchmill.ledger.ledger import Ledger
from batchmill.ledger.parts import Origin
from batchmill.outcome import Outcome
from batchmill.planning.run_spec import RunSpec
from batchmill.shards.pack_upload import PackUpload
from batchmill.shards.step_log import StepLog
from batchmill.storage import NO_ROOM
from batchmill.workers import Stop


@dataclass
class OutcomeRecorder:
    """Records outcomes. `counts` has the number of inputs by kind of outcome.

    `check_step` is called before each commit. It raises an error if the step has changed. Nothing
    is committed either after the run has lost its lease. `upload` uploads packs to a bucket. `log`
    forwards the logs of steps.
    """

    ledger: Ledger
    spec: RunSpec
    stop: Stop
    check_step: Callable[[], None]
    on_outcome: Callable[[Outcome], None] | None
    upload: PackUpload | None = None
    log: StepLog | None = None
    counts: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def committing(
        self, prefix: str, origins: Mapping[str, Origin], on_tick: Callable[[], None]
    ) -> Iterator[None]:
        """Commit outcomes in a thread during the block, and the remaining ones at its end.

        Args:
            prefix: The beginning of the names of the ledger's parts.
            origins: The origin that the ledger records for each input, by input name.
            on_tick: Called each time the thread wakes up.
        """
        before = self._prepare_commit
        with Committer(self.ledger, prefix, origins, before, on_tick) as self._committer:
            yield

    def record(self, outcomes: Sequence[Outcome]) -> None:
        """Record final outcomes.

        Raises:
            StoreError: The store is full, or failed for an input.
            LedgerError: An earlier commit has failed, for example because the run has ended.
            StepError: The step has changed since the run was planned.
        """
        if any(outcome.kind != "ok" for outcome in outcomes):
            if self.ledger.store.is_full:
                raise StoreError(self.ledger.store.url, NO_ROOM)
            outcomes = [hide_in(outcome) for outcome in outcomes]
        cancelled = [outcome for outcome in outcomes if outcome.kind == "cancelled"]
        outcomes = [outcome for outcome in outcomes if outcome.kind != "cancelled"]
        if self.log:
            outcomes = [self.log.add(outcome) for outcome in outcomes]
        self.counts.update(outcome.kind for outcome in outcomes)
        self._committer.add(outcomes)
        self._check_failures()
        if self.on_outcome:
            for outcome in outcomes:
                self.on_outcome(outcome)
        if cancelled:
            raise StoreError(f"input {cancelled[0].input}", cancelled[0].message)

    def flush(self) -> None:
        """Commit all recorded outcomes now."""
        self._committer.flush()

    def _prepare_commit(self, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        """Check that outcomes may be committed, and upload their packs.

        Raises an error if the step has changed, or if the run no longer holds the lease.

        A shard of a lost node may continue after its run has ended. Another run removes its
        unfinished files, so its inputs may fail. Its outcomes must not reach the ledger.
        """
        self.check_step()
        spec = self.spec
        if spec.token and not is_held(self.ledger, spec.token):
            raise LedgerError(f"{self.ledger.store.url}: run {spec.run} no longer holds the lease.")
        return self.upload.store(outcomes) if self.upload else outcomes

    def _check_failures(self) -> None:
        """Stop the whole run if more inputs have failed than its policy allows."""
        allowed = self.spec.enough_failures
        failed = self.counts.total() - self.counts["ok"]
        if allowed is not None and failed > allowed and not self.stop.requested:
            self.stop.request()
            self.ledger.control.request_stop(self.spec.run)
