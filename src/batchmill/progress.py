"""How far a run has come, read from the ledger: the same for any process that can see it."""

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow.compute as pc

from batchmill.errors import LedgerError
from batchmill.ledger import Ledger
from batchmill.outcome import one_line
from batchmill.plan_file import count_inputs

KEPT_FAILURES = 100


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
        for name in self._ledger.part_names(self._run):
            if name not in self._seen:
                self._seen.add(name)
                self._take(name)
        done = self._counts.total()
        return Progress(
            run=self._run,
            total=self._total,
            done=done,
            failed=done - self._counts["ok"],
            failures=tuple(self._failures),
        )

    def _take(self, part: str) -> None:
        kinds = self._ledger.read_part(part, ["outcome"])["outcome"].to_pylist()
        self._counts.update(kinds)
        if len(self._failures) < KEPT_FAILURES and set(kinds) - {"ok"}:
            columns = ["input", "outcome", "attempts", "error", "message"]
            table = self._ledger.read_part(part, columns).filter(pc.field("outcome") != "ok")
            for row in table.slice(0, KEPT_FAILURES - len(self._failures)).to_pylist():
                reason = one_line(row["error"], row["message"])
                self._failures.append(
                    Failure(row["input"], row["outcome"], row["attempts"], reason)
                )
