"""The log of a shard's task run."""

from collections.abc import Mapping
from typing import Any

from prefect.logging import get_run_logger

SHOWN_FAILURES = 100


class ShardLog:
    """Writes the inputs that are not ok, and the number of inputs by outcome, to the log."""

    def __init__(self) -> None:
        self._logger: Any = get_run_logger()
        self._failures = 0

    def failure(self, name: str, kind: str, reason: str) -> None:
        """Log an input that is not ok, with the reason. Only the first 100 are logged."""
        self._failures += 1
        if self._failures <= SHOWN_FAILURES:
            self._logger.error("%s: %s: %s", name, kind, reason)

    def end(self, outcomes: Mapping[str, int], seconds: float) -> None:
        """Log the number of inputs by outcome, and the duration of the shard."""
        counts = ", ".join(f"{count} {kind}" for kind, count in outcomes.items())
        self._logger.info("%s in %.1f s", counts, seconds)
