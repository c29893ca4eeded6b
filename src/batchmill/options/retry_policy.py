"""When and how often a failed input is retried."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often an input may be retried, and after how many seconds.

    The n-th retry waits `backoff_seconds` x 2^(n-1), at most `max_backoff_seconds`.
    """

    retries: int = 0
    backoff_seconds: float = 0.5
    max_backoff_seconds: float = 30.0

    def pause(self, attempts: int) -> float:
        """Return the seconds to wait after this number of attempts."""
        return min(self.max_backoff_seconds, self.backoff_seconds * 2.0 ** (attempts - 1))
