"""Limits the printed and logged lines of steps that a shard forwards to its task run."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from batchmill.core.outcome import Outcome
from batchmill.core.security.redaction import without_secrets
from batchmill.runs.inputs.failed_outcomes import printable

# A server stores each line in a row of its database.
_LINES_PER_INPUT, _LINES_PER_SECOND = 20, 100


class StepLines(NamedTuple):
    """The lines that a step printed or logged for an input. Without an input, a remark."""

    input: str
    lines: tuple[str, ...]


@dataclass
class StepLog:
    """Selects the lines to forward: the last ones of each input, and a limited number per second.

    Attributes:
        send: Called with the lines to forward.
        clock: Returns a time in seconds.
    """

    send: Callable[[StepLines], None]
    clock: Callable[[], float] = time.monotonic
    _second: float = 0.0
    _sent: int = 0
    _left_out: int = 0

    def add(self, outcome: Outcome) -> Outcome:
        """Forward the log of an outcome. Return the outcome to record: `ok` needs no log."""
        lines = printable(without_secrets(outcome.log)).splitlines()
        shown, hidden = lines[-_LINES_PER_INPUT:], len(lines[:-_LINES_PER_INPUT])
        if hidden:
            shown.insert(0, f"... {hidden:,} earlier lines left out")
        now = self.clock()
        if now - self._second >= 1:
            self._second, self._sent = now, 0
        if self._sent + len(shown) > _LINES_PER_SECOND:
            self._left_out += len(lines)
        elif shown:
            self._sent += len(shown)
            self.end()
            self.send(StepLines(outcome.input, tuple(shown)))
        return outcome._replace(log="") if outcome.kind == "ok" else outcome

    def end(self) -> None:
        """Report the number of lines that were left out since the last report."""
        if self._left_out:
            text = f"{self._left_out:,} lines left out, more than {_LINES_PER_SECOND} per second"
            self.send(StepLines("", (text,)))
            self._left_out = 0
