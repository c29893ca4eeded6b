"""The records of results that were compared with other code, or made again and compared.

A proof is about a sample of the results of a version. An adoption keeps results of earlier code.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from batchmill.core.sizes import counted, duration

# The bound on the share of different results holds with this confidence.
CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The comparison of some results of a version with results that were made again.

    Attributes:
        dataset: The path or URL of the dataset.
        version: The number of the version.
        names: The names of the version.
        table: The hash of the version's table.
        step: The reference of the step.
        results: The number of `ok` results of the version.
        sample: The number of them that were chosen.
        seed: The seed of the choice.
        different: The number of inputs with another result.
        differences: A line for each of the first differences.
        counts: The number of inputs that differ, by column and by name of a file.
        not_made: The number of chosen inputs that cannot be made again, by reason.
        examples: An input for each of these reasons.
        table_fault: How the version's table differs from the published one. Empty if it does not.
        host: The machine.
        python: The version of Python.
        packages: The versions of the packages that the step's module has imported.
        libraries: The libraries with another version than the results, one line each.
        created: When the comparison began, in seconds since 1970.
        seconds: Its duration.
    """

    dataset: str
    version: int
    names: Sequence[str]
    table: str
    step: str
    results: int
    sample: int
    seed: int
    different: int
    differences: Sequence[str]
    counts: Mapping[str, int]
    not_made: Mapping[str, int]
    examples: Mapping[str, str]
    table_fault: str
    host: str
    python: str
    packages: Mapping[str, str]
    created: float
    seconds: float
    libraries: Sequence[str] = ()

    @property
    def made(self) -> int:
        """The number of results that were made again."""
        return self.sample - sum(self.not_made.values())

    @property
    def is_equal(self) -> bool:
        """True if all chosen results were made again, and all are equal."""
        return not (self.different or self.not_made or self.table_fault)

    def lines(self) -> list[str]:
        """Return the proof as lines of text."""
        names = f" ({', '.join(self.names)})" if self.names else ""
        made = f"{self.made:,} of {self.results:,} results made again on {self.host}"
        how = f"seed {self.seed}, in {duration(self.seconds)}"
        lines = [f"{self.dataset}, version {self.version}{names}: {made}, {how}."]
        lines += self.libraries
        if self.table_fault:
            lines.append(f"The table of the version {self.table_fault}.")
        if self.not_made:
            lines.append(f"{counted(sum(self.not_made.values()), 'result')} cannot be made again:")
            lines += [
                f"  {count:,}: {reason} ({self.examples[reason]})"
                for reason, count in self.not_made.items()
            ]
        if self.different:
            lines.append(f"{self.different:,} of {self.sample:,} differ:")
            lines += [
                f"  {what}: differs in {n:,} of {self.sample:,}" for what, n in self.counts.items()
            ]
            lines += [f"  {line}" for line in self.differences]
        elif self.made:
            lines.append(f"All {self.made:,} are equal.{self._bound()}")
        return lines

    @property
    def short(self) -> str:
        """The result in a few words."""
        result = "all equal" if self.is_equal else f"{self.different:,} differ"
        gone = sum(self.not_made.values())
        more = f", {gone:,} cannot be made again" if gone else ""
        return (
            f"{self.made:,} of {self.results:,} results made again on {self.host}: {result}{more}"
        )

    def _bound(self) -> str:
        if self.made == self.results or not self.is_equal:
            return ""
        share, confidence = most_different(self.made), 100 * CONFIDENCE
        of_all = f"{share:g} % of the {self.results:,}"
        return f" So with {confidence:g} % confidence fewer than {of_all} differ."


def most_different(sample: int) -> float:
    """Return the largest share in percent that can differ if no result of a random sample does.

    With this share, such a sample has a chance of 5 %.

    >>> most_different(300)
    1.0
    """
    share: float = 1 - (1 - CONFIDENCE) ** (1 / sample)
    return math.ceil(1000 * share) / 10


@dataclass(frozen=True, kw_only=True)
class Adoption:
    """The results that one run has adopted.

    Attributes:
        run: The number of the run.
        outcomes: The number of outcomes that it adopted.
        sample: The number of inputs whose results were compared. 0: the user gave their word.
        seed: The seed of the random sample.
    """

    run: int
    outcomes: int
    sample: int = 0
    seed: int = 0

    @property
    def text(self) -> str:
        """How many outcomes of earlier code or libraries were kept, and why that is justified."""
        what = f"{counted(self.outcomes, 'earlier outcome')} kept"
        if not self.sample:
            return f"{what}, on the user's word."
        return f"{what}: {equal_text(self.outcomes, self.sample, self.seed)}."


def equal_text(inputs: int, sample: int, seed: int) -> str:
    """Return what a random sample without differences says about all inputs.

    >>> equal_text(20_000, 300, 7)
    '0 of 300 differ (seed 7): under 1 % of all 20,000 at 95 % confidence'
    >>> equal_text(20, 20, 7)
    'all 20 are equal'
    """
    if sample >= inputs:
        return f"all {inputs:,} are equal"
    return (
        f"0 of {sample:,} differ (seed {seed}): under {most_different(sample):g} % of all "
        f"{inputs:,} at {100 * CONFIDENCE:g} % confidence"
    )
