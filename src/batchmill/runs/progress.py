"""How far a run has come, read from the ledger: the same for any process that can see it."""

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.errors import LedgerError
from batchmill.ledger.ledger import Ledger
from batchmill.outcome import one_line
from batchmill.planning.run_spec import count_inputs

KEPT_FAILURES = 100
_COLUMNS = ("input", "outcome", "attempts", "error", "message")


class Failure(NamedTuple):
    """An input that is not ok, and why."""

    input: str
    outcome: str
    attempts: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Progress:
    """`done` of `total` inputs have an outcome, `failed` of them one that is not ok.

    `failures` has the first of these, as they came.
    """

    run: int
    total: int
    done: int
    failed: int
    failures: tuple[Failure, ...]


class RunWatcher:
    """Follows a run; by default the first that begins after the watcher was made."""

    def __init__(self, ledger: Ledger, run: int = 0) -> None:
        self._ledger = ledger
        self._before = 0 if run else len(ledger.runs())
        self._run = run
        self._total = -1
        self._seen: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._failures: list[Failure] = []

    def poll(self) -> Progress | None:
        """Look at what has been committed since the last look; None before the run begins."""
        if not self._run:
            self._run = next(iter(self._ledger.runs()[self._before :]), 0)
        if self._run and self._total < 0:
            try:
                self._total = count_inputs(self._ledger, self._run)
            except LedgerError:
                return None  # Its folder is there, its plan not yet.
        if not self._run:
            return None
        new = [name for name in self._ledger.part_names(self._run) if name not in self._seen]
        for name in new:
            self._take(self._ledger.read_part(name, _COLUMNS))
        self._seen.update(new)
        if new and self._counts.total() > self._total:
            # Some have two outcomes, one of a node that was thought lost: the ledger knows which
            # of them counts.
            self._counts.clear()
            self._failures.clear()
            self._take(self._ledger.records(_COLUMNS, run=self._run))
        done = self._counts.total()
        return Progress(
            run=self._run,
            total=self._total,
            done=done,
            failed=done - self._counts["ok"],
            failures=tuple(self._failures),
        )

    def _take(self, records: pa.Table) -> None:
        self._counts.update(records["outcome"].to_pylist())
        failed = records.filter(pc.not_equal(records["outcome"], "ok"))
        for row in failed.slice(0, KEPT_FAILURES - len(self._failures)).to_pylist():
            reason = one_line(row["error"], row["message"])
            self._failures.append(Failure(row["input"], row["outcome"], row["attempts"], reason))
