"""What a run does about inputs that fail: how long it waits, how often it tries again."""

import re
from dataclasses import dataclass

from batchmill.errors import OptionError

# A run that nobody watches must end; the longest steps of a sound job take less than an hour.
DEFAULT_TIMEOUT_SECONDS = 3600.0
DEFAULT_RETRIES = 1

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", re.IGNORECASE)
_SHARE = re.compile(r"(\d+(?:\.\d+)?)%")


@dataclass(frozen=True, kw_only=True)
class FailurePolicy:
    """What a run does about inputs that fail.

    An input is executed at most 1 + `retries` times for its own faults, each time for at most
    `timeout_seconds` and in at most `memory_bytes`, those of its child processes included; None is
    no limit. A run with more than `max_failures` inputs that are not ok, a number ("3") or a share
    ("2%"), is Failed; with `fail_fast` it stops then. Raises OptionError.
    """

    retries: int = DEFAULT_RETRIES
    timeout_seconds: float | None = DEFAULT_TIMEOUT_SECONDS
    memory_bytes: int | None = None
    max_failures: str = "0"
    fail_fast: bool = False

    def __post_init__(self) -> None:
        # In the words of JSON Schema, by which a form refuses the same.
        if self.retries < 0:
            raise OptionError(f"--retries: {self.retries} is less than the minimum of 0.")
        if self.timeout_seconds is not None and self.timeout_seconds <= 0:
            raise OptionError(
                f"--timeout: {self.timeout_seconds:g} is less than or equal to the minimum of 0."
            )
        if self.memory_bytes is not None and self.memory_bytes < 2**20:
            raise OptionError(
                f"--memory-limit: {self.memory_bytes} bytes is less than any step needs. "
                "Give a size as 2G or 500M."
            )
        self.failures_allowed(1)

    def failures_allowed(self, inputs: int) -> int:
        """Return how many of so many inputs may be not ok.

        >>> [FailurePolicy(max_failures=text).failures_allowed(250) for text in ("0", "3", "2%")]
        [0, 3, 5]
        """
        text = self.max_failures.strip()
        share = _SHARE.fullmatch(text)
        if share and float(share[1]) <= 100:
            return int(inputs * float(share[1]) / 100)
        if text.isdigit():
            return int(text)
        raise OptionError(f"--max-failures {text}: expected a number, as 3, or a share, as 2%.")


def make_policy(
    *,
    retries: int = DEFAULT_RETRIES,
    timeout_seconds: float | None = DEFAULT_TIMEOUT_SECONDS,
    memory_limit: str | None = None,
    max_failures: str = "0",
    fail_fast: bool = False,
) -> FailurePolicy:
    """Make a policy of what a user gives; `memory_limit` is a size, as 2G. Raises OptionError."""
    return FailurePolicy(
        retries=retries,
        timeout_seconds=timeout_seconds,
        memory_bytes=parse_size(memory_limit) if memory_limit else None,
        max_failures=max_failures,
        fail_fast=fail_fast,
    )


def parse_size(text: str, option: str = "--memory-limit") -> int:
    """Turn a size as people write it into bytes. Raises OptionError, which names the option.

    >>> [parse_size(text) for text in ("500M", "2G", "1.5 GiB", "1048576")]
    [524288000, 2147483648, 1610612736, 1048576]
    """
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise OptionError(f"{option} {text}: expected a size, as 2G or 500M.")
    return int(float(match[1]) * _UNITS[match[2].upper()])
