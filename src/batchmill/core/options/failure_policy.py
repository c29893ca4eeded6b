"""The failure policy of a run: time limit, memory limit, retries and allowed failures."""

import re
from decimal import Decimal
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from batchmill.core.options.validation import SIZE_PATTERN, Options, Text, parse_size
from batchmill.core.outcome import RETRIED_KINDS
from batchmill.errors import OptionError

# A run must end even if no user watches it. Steps of healthy jobs take less than an hour.
DEFAULT_TIMEOUT_SECONDS = 3600.0

# The pattern has no backslashes, because Prefect's messages print backslashes doubled.
_SHARE_PATTERN = "^ *([0-9]+|[0-9]+([.][0-9]+)?%) *$"
_SHARE = re.compile(r"(\d+(?:\.\d+)?)%")


def _as_texts(value: object) -> object:
    """Convert one expectation to a list, and leave out empty fields of a form."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple):
        return texts
    return tuple(text for text in texts if not isinstance(text, str) or text.strip())


class FailurePolicy(Options):
    """Limits per input, retries, allowed failures, and what the table must meet.

    If an input fails because of the step or the file, it is executed at most 1 + `retries` times.
    Raises OptionError.
    """

    max_failures: Text = Field(
        default="0", title="Failures allowed", json_schema_extra={"pattern": _SHARE_PATTERN}
    )
    """Number or percentage of inputs that may fail, for example 3 or 2%. If more inputs fail, the
    run counts as failed."""
    retries: int = Field(default=1, ge=0)
    """Number of times that a failed input is executed again in the same run."""
    retry_timeouts: bool = False
    """Also execute an input again that exceeded the time limit. A request to a service that hangs
    often succeeds the next time."""
    timeout: Annotated[float, BeforeValidator(lambda value: 0 if value is None else value)] = Field(
        # The timers of Python accept no more than about 9e9.
        default=DEFAULT_TIMEOUT_SECONDS,
        ge=0,
        le=1e9,
        allow_inf_nan=False,
        title="Time limit in seconds",
    )
    """Maximum number of seconds for one input. After that, its worker process is killed. 0: no
    limit."""
    memory_limit: Text = Field(default="", json_schema_extra={"pattern": SIZE_PATTERN})
    """Maximum memory for one input, for example 2G or 500M. Above that, its worker process is
    killed. Default: the machine's memory."""
    known_failures: Literal["failed", "ok"] = "failed"
    """How inputs that failed in an earlier run count. With ok, they do not make this run fail. New
    failures do."""
    fail_fast: bool = False
    """Stop the run as soon as more inputs have failed than allowed. The remaining inputs stay
    pending."""

    stop_after_same: int = Field(default=50, ge=0, title="Stop after equal failures")
    """Stop the run if this number of its first inputs all fail with one cause, and more than are
    allowed. The remaining inputs stay pending. 0: never."""

    expect: Annotated[tuple[str, ...], BeforeValidator(_as_texts)] = Field(
        default=(), title="Expectations"
    )
    """Condition that each row of the table must meet, for example peak <= 1.0, or a Pandera schema
    as module:SCHEMA. If a row breaks it, the run fails and publishes nothing. Repeatable."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for text in self.expect:
            from batchmill.core.options.conditions import check_expectation  # Imports Arrow.

            check_expectation(text)
        if self.memory_bytes is not None and self.memory_bytes < 2**20:
            raise OptionError(
                f"--memory-limit: {self.memory_bytes} bytes is less than any step needs. "
                "Give a size such as 2G or 500M."
            )
        self.failures_allowed(1)
        return self

    @property
    def retried(self) -> frozenset[str]:
        """The outcomes after which an input is executed again."""
        return RETRIED_KINDS | ({"timeout"} if self.retry_timeouts else set())

    @property
    def timeout_seconds(self) -> float | None:
        """The time limit in seconds; None for no limit."""
        return self.timeout or None

    @property
    def memory_bytes(self) -> int | None:
        """The memory limit in bytes; None for no limit."""
        limit = self.memory_limit.strip()
        return parse_size(limit, "--memory-limit") if limit else None

    def failures_allowed(self, inputs: int) -> int:
        """Return how many of `inputs` inputs may fail.

        >>> [FailurePolicy(max_failures=text).failures_allowed(10_000) for text in ("3", "0.57%")]
        [3, 57]
        """
        text = self.max_failures.strip()
        share = _SHARE.fullmatch(text)
        if share and Decimal(share[1]) <= 100:
            return int(inputs * Decimal(share[1]) / 100)
        if text.isdecimal():
            return int(text)
        raise OptionError(
            f"--max-failures {text}: expected a number such as 3, or a percentage up to 100%."
        )
