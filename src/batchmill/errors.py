"""Every error that batchmill raises on purpose.

```
BatchmillError
├── ManifestError    the manifest cannot be used
├── StepError        the step cannot be found, or does not accept these parameters
├── OptionError      an option is out of range, or contradicts another option
├── LedgerError      the dataset's ledger cannot be read or written
├── StoreError       a file, folder or URL cannot be read or written
├── ServiceError     the Prefect server or the Ray cluster cannot be started or reached
├── WorkerError      worker processes keep dying between inputs
└── RunError         the run ended, but not every input is ok
    └── CancelledError   the run was cancelled
```

A step may raise `RetryAfter`. It does not belong to these errors.

Each message says what is wrong, where, and how to fix it. All errors survive pickling, because Ray
sends them between processes.
"""

from collections.abc import Sequence

SHOWN_FAULTS = 500


class BatchmillError(Exception):
    """Base class of every error that batchmill raises on purpose."""

    def _render_traceback_(self) -> list[str]:
        """Return the text that IPython shows instead of a traceback: the message alone."""
        return [f"{type(self).__name__}: {self}"]


class ManifestError(BatchmillError):
    """The manifest cannot be used. `faults` has one sentence per fault."""

    def __init__(self, source: str, faults: Sequence[str]) -> None:
        super().__init__(source, tuple(faults))
        self.source = source
        self.faults = tuple(faults)

    def __str__(self) -> str:
        if len(self.faults) == 1:
            return f"{self.source}: {self.faults[0]}"
        shown = [f"  {fault}" for fault in self.faults[:SHOWN_FAULTS]]
        hidden = len(self.faults) - len(shown)
        if hidden:
            shown.append(f"  ... and {hidden} more")
        return "\n".join([f"{self.source}: {len(self.faults)} faults", *shown])


class StepError(BatchmillError):
    """The step cannot be found, or does not accept these parameters."""


class OptionError(BatchmillError):
    """An option is out of range, or contradicts another option."""


class LedgerError(BatchmillError):
    """The dataset's ledger has an unknown version, or a part of it cannot be read or written."""


class StoreError(BatchmillError):
    """A file, folder or URL cannot be read or written.

    `passing`: the next attempt may succeed. `general`: all other files there would fail as well.
    """

    def __init__(
        self, path: str, reason: str, *, passing: bool = False, general: bool = False
    ) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason
        self.passing = passing
        self.general = general

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class ServiceError(BatchmillError):
    """The Prefect server or the Ray cluster cannot be started or reached."""


class WorkerError(BatchmillError):
    """Worker processes of a shard keep dying between inputs."""


class RunError(BatchmillError):
    """The run ended with inputs that are not `ok`. All other results are committed."""


class CancelledError(RunError):
    """The run was cancelled. Finished inputs are committed; the other inputs are pending."""


class RetryAfter(Exception):  # noqa: N818
    """A step raises it if a service refuses a request. After a pause, the input is executed again.

    The retries of the run (`--retries`) are the limit. Other inputs continue.

    Args:
        seconds: The shortest pause before the next attempt, in seconds. With more than an hour, the
            run does not retry the input.
        message: The reason, for the outcome of an input without a retry left.
    """

    # For a subclass whose `__init__` does not call this one.
    seconds = 0.0
    message = ""

    def __init__(self, seconds: float, message: str = "") -> None:
        super().__init__(seconds, message)
        self.seconds = max(0.0, float(seconds))
        self.message = message or f"the service needs a pause of {seconds:g} s"

    def __str__(self) -> str:
        return self.message or super().__str__()
