"""The result of a run in Python: counts, and the dataset's tables as DataFrames."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pandas as pd

from batchmill.api import datasets
from batchmill.core.ledger.open import open_ledger
from batchmill.core.ledger.state import as_shown
from batchmill.core.planning.changed_code import ChangeCheck
from batchmill.core.planning.forecast import Forecast
from batchmill.core.security.credentials import Access, access_to
from batchmill.datasets.publishing.report.page import run_card
from batchmill.datasets.publishing.run_summary import Summary
from batchmill.errors import BatchmillError

_SHOWN_FAILURES = 3
_OUTCOME_COLUMNS = ("input", "outcome", "attempts", "seconds", "error", "message")


@dataclass(frozen=True, repr=False)
class RunResult:
    """The result of a run: counts, and the dataset's tables as DataFrames.

    After the run of a sample, `forecast` is about the other inputs: seconds, failures, bytes, rows.
    With `verify_change`, `change_check` has the result of the comparison.
    """

    dataset: str
    summary: Summary
    access: Sequence[Access] = field(default=(), repr=False)
    forecast: Forecast | None = None
    change_check: ChangeCheck | None = None

    @property
    def counts(self) -> dict[str, int]:
        """The number of inputs by outcome, for example {"ok": 9998, "failed": 2}."""
        return dict(self.summary.outcomes)

    @property
    def inputs(self) -> int:
        """The number of inputs in the manifest."""
        return self.summary.inputs

    @property
    def executed(self) -> int:
        """The number of inputs that this run executed."""
        return self.summary.executed

    @property
    def pending(self) -> int:
        """The number of inputs without an outcome."""
        return self.summary.pending

    @property
    def outcomes(self) -> pd.DataFrame:
        """One row per input: outcome, attempts, seconds of the last attempt, error, message."""
        with access_to(self.access):
            listed = open_ledger(self.dataset).state().listed()
            records = as_shown(listed.records([*_OUTCOME_COLUMNS, "absence"]))
        table: pd.DataFrame = records.select(list(_OUTCOME_COLUMNS)).sort_by("input").to_pandas()
        return table

    @property
    def failures(self) -> pd.DataFrame:
        """One row per input that is not ok: outcome, error, traceback, log."""
        with access_to(self.access):
            return datasets.failures(self.dataset)

    @property
    def metadata(self) -> pd.DataFrame:
        """The published table: the rows that the step returned, in the manifest's order."""
        with access_to(self.access):
            return datasets.metadata(self.dataset)

    def __repr__(self) -> str:
        lines = [f"{self.summary.sentence()}, {self.executed:,} executed"]
        lines += [f"  {name}: {why}" for name, why in self.summary.failures[:_SHOWN_FAILURES]]
        hidden = self.summary.failed - len(lines[1:])
        lines += [f"  ... and {hidden:,} more in the table `failures`"] if hidden > 0 else []
        lines += self.change_check.lines() if self.change_check else []
        return "\n".join([*lines, f"Dataset: {self.dataset}"])

    def _repr_html_(self) -> str | None:
        """Return what a notebook shows. None if the dataset no longer exists: then the text."""
        try:
            with access_to(self.access):
                return run_card(open_ledger(self.dataset), self.summary, self.dataset)
        except BatchmillError:
            return None
