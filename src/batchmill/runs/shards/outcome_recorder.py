"""Records the outcomes of a shard: counts them, commits them, and reports them.

Before a commit to a bucket, it uploads the packs that the outcomes name.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pyarrow.compute as pc

from batchmill.core.failure_causes import SameCause
from batchmill.core.layout import PACKS
from batchmill.core.ledger.committer import Committer
from batchmill.core.ledger.lease import is_held
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.parts import Origin
from batchmill.core.ledger.state import OK
from batchmill.core.outcome import Outcome, WrittenFile
from batchmill.core.storage.addresses import Address, parse_address
from batchmill.core.storage.pack_writer import PackWriter
from batchmill.core.storage.store import NO_ROOM, Store
from batchmill.errors import LedgerError, StoreError
from batchmill.runs.inputs.failed_outcomes import hide_in
from batchmill.runs.shards.shard_inputs import ShardInputs
from batchmill.runs.shards.step_log import StepLog
from batchmill.runs.workers.stop_flags import Stop


@dataclass
class OutcomeRecorder:
    """Records outcomes. `counts` has the number of inputs by kind of outcome.

    Nothing is committed if the step has changed, or after the run has lost its lease. `upload`
    uploads packs to a bucket. `log` forwards the logs of steps.
    """

    ledger: Ledger
    inputs: ShardInputs
    stop: Stop
    on_outcome: Callable[[Outcome], None] | None
    upload: "PackUpload | None"
    log: StepLog | None
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._same = SameCause(self.inputs.spec.policy.stop_after_same)

    @contextmanager
    def committing(self, prefix: str, on_tick: Callable[[], None]) -> Iterator[None]:
        """Commit outcomes in a thread during the block, and the remaining ones at its end.

        Args:
            prefix: The beginning of the names of the ledger's parts.
            on_tick: Called each time the thread wakes up.
        """
        with Committer(self.ledger, prefix, self._records_of, on_tick) as self._committer:
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
        for outcome in outcomes:
            self._same.add(outcome.kind, outcome.error, outcome.message, outcome.host)
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

    def _records_of(self, outcomes: Sequence[Outcome]) -> list[tuple[Outcome, Origin]]:
        """Check that outcomes may be committed, and upload their packs. Return their records.

        Raises an error if the step has changed, or if the run no longer holds the lease.

        A shard of a lost node may continue after its run has ended. Another run removes its
        unfinished files, so its inputs may fail. Its outcomes must not reach the ledger.
        """
        self.inputs.check_step()
        spec = self.inputs.spec
        if spec.token and not is_held(self.ledger, spec.token):
            raise LedgerError(f"{self.ledger.store.url}: run {spec.run} no longer holds the lease.")
        if self.ledger.control.is_closed(spec.run):
            raise LedgerError(
                f"{self.ledger.store.url}: run {spec.run} no longer accepts outcomes."
            )
        if self.upload:
            outcomes = self.upload.store(outcomes)
        text, origins = self.inputs.libraries.text(), self.inputs.origins
        return [(outcome, origins[outcome.input]._replace(libraries=text)) for outcome in outcomes]

    def _check_failures(self) -> None:
        """Stop the whole run if more inputs have failed than its policy allows.

        Without `fail_fast`, it is stopped only if all inputs so far have failed with one cause.
        """
        spec, control = self.inputs.spec, self.ledger.control
        failed = self.counts.total() - self.counts["ok"]
        if self.stop.requested or failed <= spec.failures_allowed:
            return
        if spec.policy.fail_fast or (self._same.is_reached and self._is_first()):
            self.stop.request()
            control.request_stop(spec.run, "" if spec.policy.fail_fast else self._same.advice)

    def _is_first(self) -> bool:
        """Return whether the inputs of this shard are the first ones of the run, on one machine.

        On a cluster, this node may be broken. So the run's own process compares all shards.
        """
        run = self.inputs.spec.run
        if self.ledger.control.read_node(run, self.inputs.shard.key) is None:
            outcomes = self.ledger.outcomes(run).table["outcome"]
            if not pc.any(pc.equal(outcomes, OK)).as_py():
                return True
        self._same.limit = 0
        return False


class _Piece(NamedTuple):
    """A part of a local pack that was uploaded: its range, and where it is now."""

    start: int
    end: int
    pack: str
    offset: int


class PackUpload:
    """Uploads packs, because nothing can be appended to an object of a bucket.

    The packs of all workers of a shard become one object for each commit.

    Args:
        store: The store of the dataset.
        packs: The local packs of the attempt.
    """

    def __init__(self, store: Store, packs: PackWriter) -> None:
        self._store = store
        self._packs = packs
        self._pieces: dict[str, list[_Piece]] = {}
        self._count = 0

    def store(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Upload the outputs of outcomes that are in packs.

        Args:
            outcomes: The outcomes, with addresses in local packs.

        Returns:
            The outcomes, with addresses in the store.

        Raises:
            StoreError: The upload failed.
        """
        ends: dict[str, int] = {}
        for outcome in outcomes:
            for file in outcome.outputs:
                place = parse_address(file.pack or "")
                if place:
                    ends[place.pack] = max(place.end, ends.get(place.pack, 0))
        self._upload({pack: end for pack, end in ends.items() if end > self._end(pack)})
        return [
            outcome._replace(outputs=tuple(map(self._moved, outcome.outputs)))
            for outcome in outcomes
        ]

    def _upload(self, ends: dict[str, int]) -> None:
        if not ends:
            return
        name = f"{PACKS}/{self._packs.prefix}-{self._count:05d}.tar"
        self._count += 1
        data = bytearray()
        pieces = {}
        for pack, end in ends.items():
            start = self._end(pack)
            pieces[pack] = _Piece(start, end, name, len(data))
            with self._path(pack).open("rb") as file:
                file.seek(start)
                data += file.read(end - start)
        self._store.write(name, bytes(data))
        for pack, piece in pieces.items():
            self._pieces.setdefault(pack, []).append(piece)
            if piece.end >= self._packs.limit:
                self._path(pack).unlink()

    def _end(self, pack: str) -> int:
        pieces = self._pieces.get(pack)
        return pieces[-1].end if pieces else 0

    def _path(self, pack: str) -> Path:
        return self._packs.folder / pack.removeprefix(f"{PACKS}/")

    def _moved(self, file: WrittenFile) -> WrittenFile:
        place = parse_address(file.pack or "")
        if not place:
            return file
        # The header of the file lies before it, so an empty file ends where its piece ends.
        piece = next(p for p in self._pieces[place.pack] if p.start < place.offset <= p.end)
        moved = Address(piece.pack, place.offset - piece.start + piece.offset, place.size)
        return file._replace(pack=moved.named(file.path))
