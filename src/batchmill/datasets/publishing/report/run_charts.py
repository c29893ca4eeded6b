"""Draw the execution of a run's inputs: over time, by duration and by size."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchmill.datasets.publishing.report.facts import Facts
from batchmill.datasets.publishing.report.svg import Axis, Chart, Series

# Two colours of Okabe and Ito's palette, which colour-blind readers can distinguish.
OK, NOT_OK = Series("ok", "#0072B2"), Series("not ok", "#D55E00")
_NODES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#999999")
_NAME_LENGTH = 16
_POINTS = 2000
_LEAST_SECONDS = 1e-5
_TIME_UNITS = ((3 * 86400.0, 86400.0, "days"), (3 * 3600.0, 3600.0, "hours"), (180.0, 60.0, "min"))


def figures(facts: Facts) -> Iterator[tuple[str, str]]:
    """Draw the charts of a run.

    Yields:
        The description of each chart, and its SVG. Nothing if no input was executed.
    """
    if not len(facts.executed):
        return
    seconds = np.maximum(_column(facts.executed, "seconds"), _LEAST_SECONDS)
    ends = _column(facts.executed, "finished_at") - facts.begun
    ok = np.asarray(pc.equal(facts.executed["outcome"], "ok"))
    sizes = _column(facts.executed, "size")
    hosts = facts.executed["host"]
    yield "Finished inputs per second, over the time of the run", _throughput(ends, ok)
    yield "Inputs in progress at the same time, by node", _parallelism(ends, seconds, hosts)
    yield "Number of inputs by duration", _durations(seconds, ok)
    if (sizes > 0).any():
        yield "Duration of inputs by size", _sizes("Sizes", "input", sizes, seconds, ok)
    written = _column(facts.executed, "written")
    if (written > 0).any():
        figure = _sizes("Outputs", "outputs of an input", written, seconds, ok)
        yield "Duration of inputs by the size of their outputs", figure


def _throughput(ends: Any, ok: Any) -> str:
    edges = np.linspace(0.0, _whole(ends), int(np.clip(len(ends) / 10, 8, 60)) + 1)
    y = _from_zero("inputs/s", np.histogram(ends, edges)[0] / edges[1])
    return _stacked_bars(Chart("Throughput", _time_axis(ends), y), ends, ok, edges, edges[1])


def _parallelism(ends: Any, seconds: Any, column: pa.ChunkedArray) -> str:
    at = np.linspace(0.0, _whole(ends), 300)
    names = sorted(pc.unique(column).to_pylist())
    hosts = np.asarray(pc.index_in(column, value_set=pa.array(names, pa.string())))
    first = np.argsort(-np.bincount(hosts), kind="stable")
    shown = first[: len(_NODES) - 1].tolist()
    groups = [(names[host][:_NAME_LENGTH], hosts == host) for host in shown]
    if len(first) >= len(_NODES):
        rest = np.isin(hosts, first[len(_NODES) - 1 :])
        groups.append((f"{len(first) - len(_NODES) + 1} more nodes", rest))
    layers = np.cumsum([at_work(at, ends[which], seconds[which]) for _, which in groups], axis=0)
    y = _from_zero("inputs in progress", layers[-1], whole=True)
    chart = Chart("Parallelism", _time_axis(ends), y)
    bottoms = np.zeros(len(at))
    for (name, _), colour, tops in zip(groups, _NODES, layers, strict=False):
        chart.area(Series(name, colour), at, bottoms, tops)
        bottoms = tops
    return chart.svg(legend=len(groups) > 1)


def at_work(at: Any, ends: Any, seconds: Any) -> Any:
    """Count the inputs in progress at each of the times `at`."""
    begun = np.searchsorted(np.sort(ends - seconds), at, side="right")
    ended = np.searchsorted(np.sort(ends), at, side="right")
    return np.maximum(begun - ended, 0)


def _durations(seconds: Any, ok: Any) -> str:
    low, high = np.log10(seconds.min()), np.log10(seconds.max())
    middle = (low + high) / 2
    # If all durations are alike, their noise must not fill the picture.
    low, high = min(low, middle - 0.5), max(high, middle + 0.5)
    edges = np.logspace(low, high, 36)
    x = Axis(label="time of one input", low=edges[0], high=edges[-1], log=True, text=_duration)
    y = _from_zero("inputs", np.histogram(seconds, edges)[0], whole=True)
    return _stacked_bars(Chart("Durations", x, y), seconds, ok, edges)


def _sizes(title: str, what: str, sizes: Any, seconds: Any, ok: Any) -> str:
    chosen = np.flatnonzero(sizes > 0)
    if len(chosen) > _POINTS:
        # A fixed seed gives the same points each time.
        chosen = np.random.default_rng(0).choice(chosen, _POINTS, replace=False)
    chart = Chart(
        title,
        _log_axis(f"size of the {what}", sizes[chosen], _bytes),
        _log_axis("time", seconds[chosen], _duration),
    )
    for series, which in ((OK, ok), (NOT_OK, ~ok)):
        these = chosen[which[chosen]]
        chart.points(series, sizes[these], seconds[these])
    return chart.svg(legend=not ok[chosen].all())


def _stacked_bars(chart: Chart, values: Any, ok: Any, edges: Any, unit: float = 1) -> str:
    """Draw a bar per bin: the number of ok inputs, and above it that of the others, per unit."""
    heights, others = (np.histogram(values[which], edges)[0] / unit for which in (ok, ~ok))
    chart.bars(OK, edges, np.zeros(len(heights)), heights)
    chart.bars(NOT_OK, edges, heights, heights + others)
    return chart.svg(legend=bool(others.any()))


def _whole(ends: Any) -> float:
    return max(float(ends.max()), 1e-3)


def _time_axis(ends: Any) -> Axis:
    whole = _whole(ends)
    unit, name = next(((u, n) for least, u, n in _TIME_UNITS if whole >= least), (1.0, "s"))
    label = f"{name} since the first input"
    return Axis(label=label, low=0.0, high=whole, text=lambda value: f"{value / unit:,.4g}")


def _from_zero(label: str, heights: Any, *, whole: bool = False) -> Axis:
    high = 1.05 * float(np.max(heights))
    return Axis(label=label, low=0.0, high=max(1.0, high) if whole else high or 1.0, whole=whole)


def _log_axis(label: str, values: Any, text: Any) -> Axis:
    """Return an axis with room around the values, and at least one power of ten."""
    low, high = np.log10(values.min()) - 0.2, np.log10(values.max()) + 0.2
    if np.floor(high) < np.ceil(low):
        low, high = np.floor(low), np.ceil(high)
    return Axis(label=label, low=10.0**low, high=10.0**high, log=True, text=text)


def _column(table: pa.Table, name: str) -> Any:
    return table[name].to_numpy().astype(float)


def _in_unit(value: float, units: Sequence[tuple[float, str]]) -> str:
    """Return a value as text, in the first unit that is not larger, or else in the last one."""
    fits = (pair for pair in units if value >= pair[0] * (1 - 1e-9))
    unit, name = next(fits, units[-1])
    return f"{value / unit:,.4g} {name}"


_duration = partial(_in_unit, units=((1.0, "s"), (1e-3, "ms"), (1e-6, "us")))
# Decimal units, because axes have ticks at powers of ten.
_bytes = partial(_in_unit, units=((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")))
