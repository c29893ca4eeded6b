"""Forecast a run from the recorded outcomes of the same step: time, failures, bytes and rows.

An input with a record is expected to take as long as before, and to end as before. The others are
divided into classes of sizes. Each class is expected to behave like its recorded inputs. The
recorded runs also show how many inputs were in progress at a time, with all overheads.
"""

import json
import math
import os
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.run_control import Usage
from batchmill.core.ledger.state import OK, State
from batchmill.core.planning.forecast_sample import size_classes
from batchmill.core.sizes import counted, duration, readable_size
from batchmill.core.storage.large_tables import count_values
from batchmill.core.storage.name_search import rows_of

# The quantile of the normal distribution for an interval of 90 %.
_Z = 1.645
# The speed of a machine differs by this share between two runs.
_SPEED_DEVIATION = 0.1
# The time besides the inputs differs by this share between two runs.
_START_UP_DEVIATION = 0.35
# The records to use. More would hardly change the forecast.
_RECORDS = 20_000
_KNOWN = ("outcome", "attempts", "seconds")
_COLUMNS = ("outcome", "attempts", "seconds", "finished_at", "rows", "outputs", "size")
# A step that uses a core for this share of its time is limited by the processor.
_BUSY = 0.7
# The last inputs of a run leave workers idle, so they say nothing about the speed.
_SHARE_BEFORE_THE_END = 0.9


class Interval(NamedTuple):
    """An expected value, and an interval for 90 % of the cases on a machine of constant speed."""

    low: float
    likely: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The expected cost of a run over some inputs.

    Attributes:
        inputs: The number of inputs.
        measured: The number of recorded outcomes that the forecast is based on.
        seconds: The duration of the run without the start-up.
        failures: The number of inputs that will not be ok.
        failed_before: The number of inputs that were not ok the last time. Their cause may be gone,
            so the interval of `failures` begins without them.
        bytes: The size of the outputs.
        rows: The number of rows in the table.
        memory_bytes: The most memory that a worker has used. 0: not measured.
        limit: The resource that limits the speed. Empty if it was not measured.
    """

    inputs: int
    measured: int
    seconds: Interval
    failures: Interval
    bytes: int
    rows: int
    memory_bytes: int = 0
    limit: str = ""
    failed_before: int = 0

    def lines(self) -> list[str]:
        """Return the forecast as lines of text."""
        shortest, expected, longest = map(duration, self.seconds)
        low, likely, high = (f"{number:,.0f}" for number in self.failures)
        again = f", with {self.failed_before:,} that failed before" if self.failed_before else ""
        memory = f"Memory of a worker: {readable_size(self.memory_bytes)}."
        return [
            f"Forecast for {counted(self.inputs, 'input')}, from {self.measured:,} measured:",
            f"  Time: {expected} ({shortest} to {longest}), without the start-up.",
            f"  Failures: {likely} ({low} to {high}){again}.",
            f"  Outputs: {readable_size(self.bytes)}, {counted(self.rows, 'row')}.",
            *([f"  {memory}"] if self.memory_bytes else []),
            *([f"  Limited by {self.limit}."] if self.limit else []),
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the forecast as plain values, for scripts."""
        return {
            **self.__dict__,
            "seconds": self.seconds._asdict(),
            "failures": self.failures._asdict(),
        }


class _Classes(NamedTuple):
    """The inputs to forecast, by class of sizes, and the mean values of the recorded inputs.

    Attributes:
        inputs: The number of inputs.
        measured: The number of records.
        means: One row per value, one column per class.
        variance: The variance of the seconds.
    """

    inputs: NDArray[np.float64]
    measured: NDArray[np.float64]
    means: NDArray[np.float64]
    variance: NDArray[np.float64]


def make_forecast(
    ledger: Ledger, state: State, step_identity: str, inputs: pa.Table, *, is_remote: bool = False
) -> Forecast | None:
    """Forecast a run over some inputs.

    Args:
        ledger: The ledger of the dataset.
        state: The state of the dataset.
        step_identity: The identity of the step. Only its own outcomes count.
        inputs: The inputs, with the columns of `Plan.pending`.
        is_remote: True if the inputs are fetched from a store or a web server.

    Returns:
        The forecast. None without inputs, or if the step has no outcome yet.
    """
    if not len(inputs):
        return None
    # An `ok` record without an attempt is an earlier result, whose file is missing now.
    is_kept = pc.and_(pc.equal(state.table["attempts"], 0), pc.equal(state.table["outcome"], OK))
    is_own = pc.equal(state.table["step"], step_identity)
    state = state.select(pc.and_(is_own, pc.invert(is_kept)))
    if not len(state):
        return None
    last = last_large_run(state.table["run"].to_numpy())
    speed = _speed(state.of_run(last).records(["seconds", "finished_at"]))
    ended = ledger.read_summary(last)
    start_up = max(0.0, ended["seconds"] - speed.seconds) if ended else 0.0
    chosen = np.zeros(len(state), bool)
    chosen[:: -(-len(state) // _RECORDS)] = True
    records = state.select(chosen).records(_COLUMNS)
    usage = ledger.control.read_usage(last)
    # An input with another file than recorded counts as new.
    has_record = rows_of(inputs["input"], state.names).is_valid()
    is_known = pc.and_(has_record, pc.not_equal(inputs["reason"], "changed"))
    known = state.of(inputs["input"].filter(is_known)).records(_KNOWN)
    every = _classes(inputs["size"].to_numpy(), records)
    new = _classes(inputs["size"].filter(pc.invert(is_known)).to_numpy(), records)
    _, _, size, rows = every.means @ every.inputs
    return Forecast(
        inputs=len(inputs),
        measured=len(records),
        seconds=_time(new, known, len(records), speed, start_up),
        failures=_failures(new, known, records),
        failed_before=len(known) - count_values(known["outcome"])[OK],
        bytes=round(size),
        rows=round(rows),
        memory_bytes=usage.memory_bytes if usage else 0,
        limit=_limit(usage, speed, is_remote=is_remote) if usage else "",
    )


def last_large_run(runs: Any) -> int:
    """Return the last run with at least a tenth of the records of the largest run.

    A few retried inputs would say nothing about a run.

    Args:
        runs: The number of the run of each record.

    Returns:
        The number of the run; 0 without records.

    >>> last_large_run(np.array([1] * 40 + [2] * 4 + [3] * 3))
    2
    """
    numbers, counts = np.unique(runs, return_counts=True)
    return int(numbers[counts * 10 >= counts.max()][-1]) if len(numbers) else 0


class _Speed(NamedTuple):
    """How fast a run was.

    Attributes:
        seconds: The time from the start of its first input to the end of its last one.
        busy: The seconds of all its inputs together.
        parallel: The seconds of inputs that it completed per second.
    """

    seconds: float
    busy: float
    parallel: float


def _speed(records: pa.Table) -> _Speed:
    took, ends = records["seconds"].to_numpy(), records["finished_at"].to_numpy()
    begun = float((ends - took).min())
    until = max(float(np.quantile(ends, _SHARE_BEFORE_THE_END)), begun + 1e-6)
    within = np.clip(until - (ends - took), 0, took).sum()
    parallel = max(float(within) / (until - begun), 1e-9)
    return _Speed(float(ends.max()) - begun, float(took.sum()), parallel)


def _classes(sizes: NDArray[np.int64], records: pa.Table) -> _Classes:
    """Divide the inputs into classes, with the means of the records of the nearest class."""
    values = np.stack(
        [
            records["seconds"].to_numpy(),
            (np.array(records["outcome"].to_pylist()) != OK).astype(float),
            written_bytes(records["outputs"]).astype(float),
            np.array([len(json.loads(text)) for text in records["rows"].to_pylist()], float),
        ]
    )
    seen, classes = size_classes(records["size"].to_numpy()), size_classes(sizes)
    known, measured = np.unique(seen, return_counts=True)
    wanted, inputs = np.unique(classes, return_counts=True)
    nearest = np.array([np.abs(known - group).argmin() for group in wanted], int)
    means = np.stack([values[:, seen == group].mean(axis=1) for group in known], axis=1)[:, nearest]
    deviation = np.array([values[0, seen == group].std() for group in known])[nearest]
    # A class with few records is expected to vary as much as all records together do.
    usual = values[0].std() / max(values[0].mean(), 1e-9)
    deviation = np.where(measured[nearest] < 5, np.maximum(deviation, usual * means[0]), deviation)
    # Larger files than all recorded ones take at least proportionally longer. Its class is a factor
    # of 4 per step.
    means[0] *= 4.0 ** np.maximum(wanted - known[nearest], 0)
    return _Classes(inputs.astype(float), measured[nearest].astype(float), means, deviation**2)


def _time(
    new: _Classes, known: pa.Table, measured: int, speed: _Speed, start_up: float
) -> Interval:
    # An input that fails again is executed as often as before.
    again = known["seconds"].to_numpy() * np.maximum(known["attempts"].to_numpy(), 1)
    seconds = float(new.means[0] @ new.inputs + again.sum())
    sampling = float((new.inputs**2 * new.variance / new.measured).sum())
    share = _SPEED_DEVIATION**2 + 1 / measured
    deviation = math.sqrt(sampling + share * seconds**2)
    # No worker can be faster than the slowest input.
    least = float(np.concatenate([new.means[0], again]).max())
    likely = start_up + max(least, seconds / speed.parallel)
    spread = _Z * math.hypot(deviation / speed.parallel, _START_UP_DEVIATION * start_up)
    return Interval(max(least, likely - spread), likely, likely + spread)


def _failures(new: _Classes, known: pa.Table, records: pa.Table) -> Interval:
    """Return how many inputs will not be ok: new ones, and some that have a record.

    The share that fails again is that of all inputs with a second attempt in one run. The cause may
    be gone, too.
    """
    count, expected = float(new.inputs.sum()), float(new.means[1] @ new.inputs)
    of_new = wilson(expected / count, _effective(new), count) if count else Interval(0, 0, 0)
    failed = np.array(known["outcome"].to_pylist()) != OK
    was_tried = records["attempts"].to_numpy() > 1
    is_ok = np.array(records["outcome"].to_pylist()) == OK
    share = 1 - is_ok[was_tried].mean() if was_tried.any() else 1.0
    before, others = float(failed.sum()), float((~failed).sum())
    more = wilson(0, len(records), others).high
    return Interval(of_new.low, of_new.likely + before * share, of_new.high + before + more)


def _effective(classes: _Classes) -> float:
    """Return the size of a simple random sample that says as much about a share."""
    weights = classes.inputs / classes.inputs.sum()
    return float(1 / (weights**2 / classes.measured).sum())


def wilson(share: float, sample: float, inputs: float) -> Interval:
    """Return the Wilson interval of a number of failures.

    Args:
        share: The share of failures in the sample.
        sample: The size of the sample.
        inputs: The number of inputs to forecast.

    >>> [round(number) for number in wilson(0.0, 100, 1000)]
    [0, 0, 26]
    """
    z = _Z**2 / sample
    middle = share + z / 2
    half = math.sqrt(share * (1 - share) * z + z**2 / 4)
    low, high = ((middle + sign * half) / (1 + z) for sign in (-1, 1))
    return Interval(max(0.0, low) * inputs, share * inputs, min(1.0, high) * inputs)


def _limit(usage: Usage, speed: _Speed, *, is_remote: bool) -> str:
    """Return what limits the speed, as a part of a sentence."""
    busy = min(1.0, usage.cpu_seconds / max(speed.busy, 1e-9))
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if usage.memory_bytes * speed.parallel > 0.8 * machine:
        return f"memory: the workers together need most of {readable_size(machine)}"
    share = f"{busy:.0%} of the time on a core".replace("%", " %")
    if busy >= _BUSY:
        return f"the processor: {share}"
    where = "the network" if is_remote else "the disk or by waiting"
    return f"{where}: only {share}. More workers can help: --num-workers"


def written_bytes(outputs: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return the bytes of the outputs of each record."""
    sizes = pc.struct_field(pc.list_flatten(outputs), "size").to_numpy()
    parents = pc.list_parent_indices(outputs).to_numpy()
    return np.bincount(parents, sizes, minlength=len(outputs)).astype(np.int64)
