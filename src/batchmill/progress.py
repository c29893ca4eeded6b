"""How far a run has come, read from the ledger: the same for any process that can see it."""

from collections import Counter
from dataclasses import dataclass

from batchmill.errors import LedgerError
from batchmill.ledger import Ledger
from batchmill.plan_file import count_inputs


@dataclass(frozen=True, kw_only=True)
class Progress:
    """`done` of `total` inputs have an outcome, `failed` of them one that is not ok."""

    run: int
    total: int
    done: int
    failed: int


class RunWatcher:
    """Follows the first run that begins after the watcher was made."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._before = len(ledger.runs())
        self._run = 0
        self._total = 0
        self._seen: set[str] = set()
        self._counts: Counter[str] = Counter()

    def poll(self) -> Progress | None:
        """Look at what has been committed since the last look; None before the run begins."""
        if not self._run:
            runs = self._ledger.runs()[self._before :]
            if not runs:
                return None
            try:
                self._total = count_inputs(self._ledger, runs[0])
            except LedgerError:
                return None  # Its folder is there, its plan not yet.
            self._run = runs[0]
        for name in self._ledger.part_names(self._run):
            if name not in self._seen:
                self._seen.add(name)
                part = self._ledger.read_part(name, ["outcome"])
                self._counts.update(part["outcome"].to_pylist())
        done = self._counts.total()
        return Progress(
            run=self._run, total=self._total, done=done, failed=done - self._counts["ok"]
        )
