"""Execute a random sample of a dataset with a changed step, and show what the change does.

The results are discarded. The comparison is that of `--verify-change`.
"""

import json
import math
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import itemgetter
from statistics import NormalDist, fmean
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.errors import OptionError
from batchmill.ledger.proofs import CONFIDENCE, most_different
from batchmill.ledger.state import OK
from batchmill.options.groups import RunOptions
from batchmill.outcome import one_line
from batchmill.planning.change_check import ChangeCheck
from batchmill.planning.job import make_job
from batchmill.planning.prepare import Prepared, plan_with, prepare
from batchmill.planning.recorded_job import recorded_job
from batchmill.planning.sample import random_sample
from batchmill.runs.discarded_job import RESULT_COLUMNS, differences, make_again
from batchmill.sizes import counted, duration, readable_size
from batchmill.storage.name_search import rows_of

_SHOWN, _SHOWN_COLUMNS = 10, 20
_COLUMNS = (*RESULT_COLUMNS, "seconds")


@dataclass(frozen=True, kw_only=True)
class ColumnChange:
    """A numeric column of the rows in the sample, as the mean, minimum and maximum.

    Attributes:
        name: The column.
        before: Those of the recorded rows.
        after: Those of the new rows.
    """

    name: str
    before: Sequence[float]
    after: Sequence[float]

    @property
    def text(self) -> str:
        """The column in one line."""
        sides = (
            f"{one[0]:.4g} ({one[1]:.4g} to {one[2]:.4g})" for one in (self.before, self.after)
        )
        return f"{self.name}: {' -> '.join(sides)}"


@dataclass(frozen=True, kw_only=True)
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
        differences: The first differences, one line each.
        appeared: The reasons of the failures that only the change has, by input.
        vanished: The reasons of the failures that only the recorded results have, by input.
        columns: The numeric columns that differ.
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
    differences: Sequence[str]
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
        executed = f"{self.sample:,} of {counted(self.inputs, 'input')} executed"
        yield f"Review of {self.dataset}: {executed} (seed {self.seed})", [*self.changes]
        counts = [f"{what}: differs in {count:,}" for what, count in self.counts.items()]
        yield self._verdict(), [*counts, *self.differences]
        if self.columns:
            yield "Columns, as mean (minimum to maximum):", [one.text for one in self.columns]
        for what, found in (("new", self.appeared), ("vanished", self.vanished)):
            if found:
                shown = islice(found.items(), _SHOWN)
                title = counted(len(found), f"{what} failure")
                yield f"{title}:", [f"{name}: {reason}" for name, reason in shown]
        time = " -> ".join(f"{duration(one)}" for one in self.seconds)
        space = " -> ".join(readable_size(one * self.inputs) for one in self.bytes)
        total = " -> ".join(duration(one * self.inputs) for one in self.seconds)
        yield f"An input takes {time}; all take {total} on one core. Outputs: {space}.", []

    def lines(self) -> list[str]:
        """Return the review as lines of text."""
        found = []
        for title, lines in self.sections():
            found += [title, *(f"  {line}" for line in lines)]
        return found

    def markdown(self) -> str:
        """Return the review as Markdown, for example for a comment of a pull request."""
        parts = []
        for number, (title, lines) in enumerate(self.sections()):
            heading = f"### {title}" if not number else f"**{title}**"
            parts.append("\n".join([heading, "", *map(_as_code, lines)]).rstrip())
        return "\n\n".join(parts) + "\n"

    def _verdict(self) -> str:
        if not self.results:
            return "No input has a result before and after."
        is_whole, sure = self.sample >= self.inputs, f"at {100 * CONFIDENCE:g} % confidence"
        if not self.different:
            bound = f", so under {most_different(self.results):g} % of all do {sure}"
            return f"No result differs{'' if is_whole else bound}."
        low, high = (f"{100 * bound:.1f}" for bound in _interval(self.different, self.results))
        bound = f": {low} to {high} % of all {sure}"
        return f"{self.different:,} of {self.results:,} results differ{'' if is_whole else bound}."


def review(
    dataset: str,
    *,
    params: Mapping[str, Any] = MappingProxyType({}),
    step: Any = None,
    count: int = 300,
    seed: int | None = None,
    on_sample: Callable[[int], None] = lambda _: None,
) -> Review:
    """Execute a random sample of a dataset with a changed step, and compare it with the results.

    Inputs whose files have changed are left out, because the change of the step does not matter
    for them. Nothing is written.

    Args:
        dataset: The path or URL of the dataset. Its recorded job is executed.
        params: Parameters of the step with other values.
        step: Another step. None: the recorded one, as its code is now.
        count: The number of inputs to execute.
        seed: The seed of the sample. None: a new one.
        on_sample: Called with the number of inputs before they are executed.

    Raises:
        OptionError: There is no outcome to compare with, or the step cannot run on a sample.
        BatchmillError: Any error of `prepare` and of the shards.
    """
    with recorded_job(dataset, step=step) as job:
        failures = job.options.failures.model_copy(update={"max_failures": "100%", "expect": ()})
        options = replace(job.options, failures=failures, run=RunOptions(replace_step=True))
        made = make_job(**vars(replace(job, params={**job.params, **params}, options=options)))
        prepared = prepare(made)
        if prepared.step.kind == "items":
            raise OptionError(
                "a step with one item per row of the manifest cannot run on a sample."
            )
        names = _unchanged(prepared)
        if not len(names):
            raise OptionError(f"{dataset}: has no outcome to compare with. Run its job first.")
        seed = secrets.randbelow(2**31) if seed is None else seed
        chosen = names.take(pa.array(random_sample(len(names), count, seed)))
        rows = rows_of(chosen, prepared.manifest.inputs["input"])
        on_sample(len(rows))
        before = prepared.state.of(chosen).records(_COLUMNS).to_pylist()
        after = make_again(prepared, rows, _COLUMNS).to_pylist()
    return _compare(prepared, len(names), seed, before, {one["input"]: one for one in after})


def _unchanged(prepared: Prepared) -> pa.ChunkedArray:
    """Return the inputs that were executed, and whose files are there and have not changed."""
    earlier = frozenset(prepared.state.table["step"].unique().to_pylist())
    # A plan as if the results of all earlier steps were equal has only other reasons.
    plan = plan_with(prepared, ChangeCheck(steps=earlier, sample=1)).plan
    is_changed = pc.is_in(plan.pending["reason"], value_set=pa.array(["new", "changed"]))
    changed = plan.pending.filter(is_changed)["input"]
    state = prepared.state.of(prepared.manifest.inputs["input"]).not_of(plan.unreadable)
    is_failed = pc.not_equal(state.table["outcome"], OK)
    return state.select(pc.or_(is_failed, rows_of(state.names, changed).is_null())).names


def _compare(
    prepared: Prepared,
    inputs: int,
    seed: int,
    before: Sequence[Mapping[str, Any]],
    after: Mapping[str, Mapping[str, Any]],
) -> Review:
    appeared, vanished, found = {}, {}, {}
    both = []
    for one in sorted(before, key=itemgetter("input")):
        name, now = one["input"], after.get(one["input"])
        was_ok, is_ok = one["outcome"] == "ok", now is not None and now["outcome"] == "ok"
        if was_ok and now is not None and is_ok:
            found[name] = list(differences(one, now))
            both.append((one, now))
        elif was_ok:
            appeared[name] = _reason(now) if now else "no outcome"
        elif is_ok:
            vanished[name] = _reason(one)
    different = sorted(name for name in found if found[name])
    counts = Counter(
        what for name in different for what in dict.fromkeys(one.what for one in found[name])
    )
    sides = [[pair[side] for pair in both] for side in (0, 1)]
    return Review(
        dataset=prepared.job.output,
        changes=[*prepared.step_changes, *(one.text for one in prepared.library_changes)],
        inputs=inputs,
        sample=len(before),
        seed=seed,
        results=len(both),
        different=len(different),
        counts=dict(counts.most_common(_SHOWN_COLUMNS)),
        differences=[f"{name}: {found[name][0].text}" for name in different[:_SHOWN]],
        appeared=appeared,
        vanished=vanished,
        columns=list(islice(_column_changes(*sides), _SHOWN_COLUMNS)),
        seconds=[fmean([one["seconds"] for one in side] or [0]) for side in sides],
        bytes=[fmean([_bytes(one) for one in side] or [0]) for side in sides],
    )


def _column_changes(*sides: Sequence[Mapping[str, Any]]) -> Iterator[ColumnChange]:
    old, new = map(_numbers, sides)
    for name in [name for name in old if name in new]:
        before, after = ((fmean(one), min(one), max(one)) for one in (old[name], new[name]))
        if before != after:
            yield ColumnChange(name=name, before=before, after=after)


def _numbers(records: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the finite numbers in each column of the rows of some records."""
    found: dict[str, list[float]] = {}
    for record in records:
        for row in json.loads(record["rows"]):
            for name, value in row.items():
                if isinstance(value, int | float) and math.isfinite(value):
                    found.setdefault(name, []).append(float(value))
    return found


def _as_code(line: str) -> str:
    return "- `" + line.replace("`", "'") + "`"


def _reason(record: Mapping[str, Any]) -> str:
    return f"{record['outcome']}: {one_line(record['error'], record['message'])}"


def _bytes(record: Mapping[str, Any]) -> int:
    return sum(file["size"] for file in record["outputs"])


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
