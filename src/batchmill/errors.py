"""Every error that batchmill raises on purpose.

    BatchmillError
    ├── ManifestError    the list of inputs cannot be used
    ├── StepError        the step cannot be found, or does not take these parameters
    ├── OptionError      a setting is out of range, or contradicts another
    ├── LedgerError      the dataset's record cannot be read or written
    ├── StoreError       a file, folder or URL cannot be read or written
    ├── ServiceError     the Prefect server or the Ray cluster cannot be started or reached
    ├── WorkerError      worker processes keep dying, and no input is to blame
    └── RunError         the run ended, but not every input is `ok`
        └── CancelledError   because somebody asked it to end

Each text says what is wrong, where, and what to do. All of them survive pickling, because Ray
sends them between processes.
"""

from collections.abc import Sequence

SHOWN_FAULTS = 500


class BatchmillError(Exception):
    """Base of every error that is for the user to mend."""


class ManifestError(BatchmillError):
    """The manifest cannot be used; `faults` has one sentence for each thing wrong with it."""

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
    """The step's reference does not lead to a step, or its parameters do not fit it."""


class OptionError(BatchmillError):
    """A setting is out of range, or contradicts another."""


class LedgerError(BatchmillError):
    """The dataset's ledger is of an unknown version, or a part of it cannot be read."""


class StoreError(BatchmillError):
    """A file, folder or URL cannot be read or written.

    `passing` if the next try may succeed; `general` if no other file there would fare better.
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
    """Worker processes of a shard keep dying between inputs; no input is to blame."""


class RunError(BatchmillError):
    """The run ended with inputs that are not `ok`; everything else is done and committed."""


class CancelledError(RunError):
    """The run was cancelled; what it had finished is committed, the rest is pending."""
