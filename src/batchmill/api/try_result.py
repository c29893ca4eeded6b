"""The result of a step on one input."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from batchmill.outcome import Outcome, WrittenFile, one_line
from batchmill.sizes import counted

_SHOWN_ROWS, _SHOWN_CHARACTERS = 3, 200


@dataclass(frozen=True, kw_only=True, repr=False)
class TryResult:
    """The result of a step on one input.

    Attributes:
        input: The input.
        kind: The outcome: "ok", or for example "failed".
        seconds: How long the step ran.
        rows: The rows that the step returned.
        files: The files that the step wrote: path, size and content hash.
        error: The type of the exception. Empty if the input is ok.
        message: The text of the exception.
        traceback: The traceback of the exception.
        log: The last lines that the step printed.
    """

    input: str
    kind: str
    seconds: float
    rows: Sequence[dict[str, Any]]
    files: Sequence[WrittenFile]
    error: str
    message: str
    traceback: str
    log: str

    def __repr__(self) -> str:
        text = f"{self.input}: {self.kind} in {self.seconds:.3f} s"
        if self.kind != "ok":
            reason = self.traceback.rstrip() or one_line(self.error, self.message)
            return f"{text}\n{reason}"
        counts = f"{counted(len(self.rows), 'row')}, {counted(len(self.files), 'file')}"
        shown = [f"  {row}"[:_SHOWN_CHARACTERS] for row in self.rows[:_SHOWN_ROWS]]
        more = ["  ..."] if len(self.rows) > _SHOWN_ROWS else []
        return "\n".join([f"{text}, {counts}", *shown, *more])


def try_result(outcome: Outcome) -> TryResult:
    """Return the result that a user gets for an outcome."""
    return TryResult(
        input=outcome.input,
        kind=outcome.kind,
        seconds=outcome.seconds,
        rows=json.loads(outcome.rows),
        files=list(outcome.outputs),
        error=outcome.error,
        message=outcome.message,
        traceback=outcome.traceback,
        log=outcome.log,
    )
