"""The result of `--verify-change`: whether the changed code gives the same outputs."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from batchmill.core.ledger.proof_records import equal_text
from batchmill.core.sizes import counted


@dataclass(frozen=True, kw_only=True)
class ChangeCheck:
    """A comparison of the outputs of an earlier version of the step with those of the present one.

    Attributes:
        steps: The identities of the earlier versions.
        inputs: The number of inputs whose only reason to be executed is the changed code.
        sample: The number of those inputs that were executed with the changed code. 0: none.
        seed: The seed of the random sample.
        different: The number of inputs in the sample with another result.
        differences: The first differences, one line each.
        reason: Why nothing was executed. Empty if a sample was executed.
    """

    steps: frozenset[str] = frozenset()
    inputs: int = 0
    sample: int = 0
    seed: int = 0
    different: int = 0
    differences: Sequence[str] = ()
    reason: str = ""

    @property
    def is_equal(self) -> bool:
        """True if all results of the sample are equal, so that all outputs may be kept."""
        return self.sample > 0 and not self.different

    def as_json(self) -> dict[str, Any]:
        """Return the result as plain values, for scripts."""
        return {**asdict(self), "steps": sorted(self.steps), "differences": [*self.differences]}

    def lines(self) -> list[str]:
        """Return the result as lines of text."""
        if not self.sample:
            return [f"--verify-change: nothing was compared, because {self.reason}."]
        if self.is_equal:
            return [f"--verify-change: {equal_text(self.inputs, self.sample, self.seed)}."]
        more = self.different - len(self.differences)
        result = f"{self.different:,} of {self.sample:,} differ (seed {self.seed})"
        return [
            f"--verify-change: {result}, so all inputs are executed.",
            *(f"  {line}" for line in self.differences),
            *([f"  ... and {counted(more, 'more input')}"] if more > 0 else []),
        ]
