"""What the log of a shard's task run says."""

from collections.abc import Mapping
from typing import Any

from prefect.logging import get_run_logger

SHOWN_FAILURES = 100


class ShardLog:
    """Writes to the task run's log: the inputs that are not ok, and how many had which outcome."""

    def __init__(self) -> None:
        self._logger: Any = get_run_logger()
        self._failures = 0

    def failure(self, name: str, kind: str, reason: str) -> None:
        """Name an input that is not ok, and say why; after a hundred, no more are named."""
        self._failures += 1
        if self._failures <= SHOWN_FAILURES:
            self._logger.error("%s: %s: %s", name, kind, reason)

    def end(self, outcomes: Mapping[str, int], seconds: float) -> None:
        """Count the outcomes of a shard that has ended."""
        counts = ", ".join(f"{count} {kind}" for kind, count in outcomes.items())
        self._logger.info("%s in %.1f s", counts, seconds)
