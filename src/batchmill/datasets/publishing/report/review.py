"""A review: what a change of the step does to a sample of a dataset, as text, Markdown and HTML."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from statistics import NormalDist

from batchmill.core.ledger.proof_records import CONFIDENCE, most_different
from batchmill.core.sizes import counted, duration, readable_size
from batchmill.datasets.publishing.report.file_comparison import FileComparison
from batchmill.datasets.publishing.report.page import load_template

_SHOWN_LINES = 10
# After this number of bytes of pictures and recordings, no other follows. So a page stays small.
_EMBEDDED_BYTES = 3 * 2**20


@dataclass(frozen=True, kw_only=True)
class ColumnChange:
    """The distribution of a column in the rows of the sample, before and after a change.

    Attributes:
        name: The column.
        before: For numbers the mean, the minimum and the maximum; for others, the number of rows by
            value.
        after: The same of the new rows.
        bars: The histograms of numbers, before and after: the numbers of rows in bins of one width,
            from the smallest to the largest of all values. Empty for other values.
    """

    name: str
    before: Mapping[str, float]
    after: Mapping[str, float]
    bars: Sequence[Sequence[int]] = ()

    @property
    def text(self) -> str:
        """The column in one line."""
        return f"{self.name}: {self.side(self.before)} -> {self.side(self.after)}"

    def side(self, side: Mapping[str, float]) -> str:
        """Return `before` or `after` in one line."""
        if self.bars:
            return "{mean:.4g} ({minimum:.4g} to {maximum:.4g})".format(**side)
        return ", ".join(f"{value} {count:,}" for value, count in side.items()) or "no value"


@dataclass(frozen=True, kw_only=True)
class ChangedInput:
    """An input of the sample whose result has changed.

    Attributes:
        input: Its name.
        change: The sum of its files and columns, each from 0 for about the same to 1 for nothing in
            common. Columns are the mean over the rows.
        files: The comparison of its most changed files, by name.
        others: Its other differences, one line each.
        more_files: The number of its changed files that are not in `files`.
    """

    input: str
    change: float
    files: Mapping[str, FileComparison]
    others: Sequence[str]
    more_files: int

    @property
    def first(self) -> str:
        """Its first difference in one line."""
        of_files = (f"{name}: {file.text}" for name, file in self.files.items())
        return f"{self.input}: {next(chain(of_files, self.others))}"


@dataclass(frozen=True, kw_only=True, repr=False)
class Review:
    """The effect of a change on a random sample of a dataset.

    Attributes:
        dataset: The path or URL of the dataset.
        changes: The changes since the recorded results: params, code and libraries.
        inputs: The number of inputs that the sample is taken from.
        sample: The number of inputs that were executed.
        seed: The seed of the sample.
        results: The number of them with a result before and after.
        different: The number of these whose results differ.
        counts: The number of inputs that differ, by column and by name of a file.
        most_changed: The inputs that differ most, the most changed one first.
        appeared: The reasons of the failures that only the change has, by input.
        vanished: The reasons of the failures that only the recorded results have, by input.
        columns: The columns whose values differ.
        seconds: The mean time of an input before and after.
        bytes: The mean size of its outputs before and after.
    """

    dataset: str
    changes: Sequence[str]
    inputs: int
    sample: int
    seed: int
    results: int
    different: int
    counts: Mapping[str, int]
    most_changed: Sequence[ChangedInput]
    appeared: Mapping[str, str]
    vanished: Mapping[str, str]
    columns: Sequence[ColumnChange]
    seconds: Sequence[float]
    bytes: Sequence[float]

    @property
    def is_equal(self) -> bool:
        """True if no result and no failure of the sample has changed."""
        return not (self.different or self.appeared or self.vanished)

    def sections(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the parts of the review: a sentence, and the lines below it."""
        yield self.title, [*self.changes]
        counts = [f"{what}: differs in {count:,}" for what, count in self.counts.items()]
        changed = [changed_input.first for changed_input in self.most_changed[:_SHOWN_LINES]]
        yield self.verdict, [*counts, *changed]
        if self.columns:
            yield "Columns:", [column.text for column in self.columns]
        for what, reasons in self.failures.items():
            lines = [f"{name}: {reason}" for name, reason in islice(reasons.items(), _SHOWN_LINES)]
            hidden = len(reasons) - len(lines)
            more = [f"... and {hidden:,} more"] if hidden else []
            yield f"{counted(len(reasons), what)}:", [*lines, *more]
        yield self.forecast, []

    @property
    def title(self) -> str:
        """The dataset, and the number of executed inputs."""
        executed = f"{self.sample:,} of {counted(self.inputs, 'input')} executed"
        return f"Review of {self.dataset}: {executed} (seed {self.seed})"

    @property
    def failures(self) -> dict[str, Mapping[str, str]]:
        """The failures that only one side has, by "new failure" and "vanished failure"."""
        by_kind = {"new failure": self.appeared, "vanished failure": self.vanished}
        return {what: reasons for what, reasons in by_kind.items() if reasons}

    @property
    def verdict(self) -> str:
        """The number of results that differ, with the bound for all inputs."""
        if not self.results:
            return "No input has a result before and after."
        is_whole, sure = self.sample >= self.inputs, f"at {100 * CONFIDENCE:g} % confidence"
        if not self.different:
            bound = f", so under {most_different(self.results):g} % of all do {sure}"
            return f"No result differs{'' if is_whole else bound}."
        low, high = (f"{100 * bound:.1f}" for bound in _interval(self.different, self.results))
        bound = f": {low} to {high} % of all {sure}"
        return f"{self.different:,} of {self.results:,} results differ{'' if is_whole else bound}."

    @property
    def forecast(self) -> str:
        """The time and the space of all inputs."""
        time = " -> ".join(map(duration, self.seconds))
        space = " -> ".join(readable_size(mean * self.inputs) for mean in self.bytes)
        total = " -> ".join(duration(mean * self.inputs) for mean in self.seconds)
        return f"An input takes {time}; all take {total} on one core. Outputs: {space}."

    def lines(self) -> list[str]:
        """Return the review as lines of text."""
        all_lines = []
        for title, lines in self.sections():
            all_lines += [title, *(f"  {line}" for line in lines)]
        return all_lines

    def __repr__(self) -> str:
        """Return the lines of the review, without its pictures."""
        return "\n".join(self.lines())

    def markdown(self) -> str:
        """Return the review as Markdown, for example for a comment of a pull request."""
        parts = []
        for number, (title, lines) in enumerate(self.sections()):
            heading = f"### {title}" if not number else f"**{title}**"
            parts.append("\n".join([heading, "", *map(_as_code, lines)]).rstrip())
        return "\n\n".join(parts) + "\n"

    # Notebooks show it.
    _repr_markdown_ = markdown

    def html(self) -> str:
        """Return the review as a page that can be read offline, with the most changed results."""
        left, shown = _EMBEDDED_BYTES, set()
        for changed in self.most_changed:
            for name, file in changed.files.items():
                left -= sum(map(len, (*file.pictures, *file.sounds)))
                if left > 0:
                    shown.add((changed.input, name))
        return load_template("review.html").render(review=self, shown=shown)


def _as_code(line: str) -> str:
    return "- `" + line.replace("`", "'") + "`"


def _interval(part: int, whole: int) -> tuple[float, float]:
    """Return the bounds of a share, by Wilson's score interval.

    >>> [round(bound, 3) for bound in _interval(12, 300)]
    [0.023, 0.069]
    """
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    share, weight = part / whole, 1 + z * z / whole
    middle = (share + z * z / (2 * whole)) / weight
    half = z / weight * math.sqrt(share * (1 - share) / whole + z * z / (4 * whole * whole))
    return middle - half, middle + half
