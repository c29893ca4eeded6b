"""Pictures of how the inputs of a run went: over time, by duration, by size."""

import base64
import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from batchmill.report.facts import Facts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# To be told apart by everybody: two colours of Okabe and Ito's palette.
OK, NOT_OK = "#0072B2", "#D55E00"
_HOSTS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#999999")
_SIZE = (6.0, 2.7)
_STYLE = {
    "font.size": 9.0,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e8e8e8",
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    # Text stays text, in the reader's font: smaller, and it can be searched.
    "svg.fonttype": "none",
}
_POINTS = 3000
_TIME_UNITS = ((3 * 86400.0, 86400.0, "days"), (3 * 3600.0, 3600.0, "hours"), (180.0, 60.0, "min"))
# Powers of ten, for axes that go by them.
_SIZE_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def figures(facts: Facts) -> "Iterator[tuple[str, Figure]]":
    """Draw what a run's records tell; yields each figure with what it shows in words.

    Yields none if nothing was executed.
    """
    if not len(facts.executed):
        return
    seconds = _column(facts.executed, "seconds")
    ends = _column(facts.executed, "finished_at") - facts.begun
    ok = np.array(facts.executed["outcome"].to_pylist()) == "ok"
    sizes = _column(facts.executed, "size")
    hosts = np.array(facts.executed["host"].to_pylist())
    with _drawing():
        yield "Inputs that ended in each second, over the time of the run", _throughput(ends, ok)
        yield "Inputs at work at the same time, by node", _parallelism(ends, seconds, hosts)
        yield "How many inputs took how long", _durations(seconds, ok)
        if (sizes > 0).any():
            yield "How long inputs took, by their size", _sizes(sizes, seconds, ok)


def as_svg(figure: "Figure") -> str:
    """Return a figure as an SVG element."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None}, transparent=True)
    return text.getvalue()[text.getvalue().index("<svg") :]


def as_data_url(figure: "Figure") -> str:
    """Return a figure as a URL that holds it, as PNG."""
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=110)
    return f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"


def get_ready() -> None:
    """Import what draws figures: half a second, for which others may have a better moment."""
    # It tells about its font cache, which is nobody's concern.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    for name in ("figure", "axes", "ticker", "backends.backend_agg", "backends.backend_svg"):
        import_module(f"matplotlib.{name}")


@contextmanager
def _drawing() -> "Iterator[None]":
    get_ready()
    import matplotlib as mpl

    with mpl.rc_context(cast("Any", _STYLE)):
        yield


def _axes(title: str, x: str, y: str) -> "tuple[Figure, Axes]":
    # A figure of its own, without pyplot: that keeps figures, and may look for a screen.
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    axes.set(title=title, xlabel=x, ylabel=y)
    return figure, axes


def _throughput(ends: Any, ok: Any) -> "Figure":
    whole = max(float(ends.max()), 1e-3)
    unit, name = _time_unit(whole)
    edges = np.linspace(0.0, whole, int(np.clip(len(ends) / 10, 8, 60)) + 1)
    width = edges[1] - edges[0]
    figure, axes = _axes("Throughput", f"{name} since the first input", "inputs/s")
    bottom = np.zeros(len(edges) - 1)
    for which, colour, label in ((ok, OK, "ok"), (~ok, NOT_OK, "not ok")):
        if which.any():
            height = np.histogram(ends[which], edges)[0] / width
            axes.bar(
                edges[:-1] / unit,
                height,
                width / unit,
                bottom=bottom,
                align="edge",
                color=colour,
                label=label,
            )
            bottom += height
    axes.margins(x=0)
    _legend(axes, needed=not ok.all())
    return figure


def _parallelism(ends: Any, seconds: Any, hosts: Any) -> "Figure":
    whole = max(float(ends.max()), 1e-3)
    unit, name = _time_unit(whole)
    at = np.linspace(0.0, whole, 300)
    figure, axes = _axes("Parallelism", f"{name} since the first input", "inputs at work")
    names, counts = np.unique(hosts, return_counts=True)
    first = names[np.argsort(-counts, kind="stable")]
    groups = [(str(host), hosts == host) for host in first[: len(_HOSTS) - 1]]
    if len(first) >= len(_HOSTS):
        rest = np.isin(hosts, first[len(_HOSTS) - 1 :])
        groups.append((f"{len(first) - len(_HOSTS) + 1} more nodes", rest))
    layers = [at_work(at, ends[which], seconds[which]) for _, which in groups]
    axes.stackplot(
        at / unit,
        layers,
        labels=[label for label, _ in groups],
        colors=_HOSTS[: len(groups)],
        step="mid",
        linewidth=0,
    )
    axes.margins(x=0)
    _whole_numbers(axes)
    _legend(axes, needed=len(groups) > 1)
    return figure


def at_work(at: Any, ends: Any, seconds: Any) -> Any:
    """Count the inputs that have begun and not ended, at each of some times."""
    begun = np.searchsorted(np.sort(ends - seconds), at, side="right")
    ended = np.searchsorted(np.sort(ends), at, side="right")
    return np.maximum(begun - ended, 0)


def _durations(seconds: Any, ok: Any) -> "Figure":
    figure, axes = _axes("Durations", "time of one input", "inputs")
    shown = np.maximum(seconds, 1e-5)
    low, high = np.log10(shown.min()), np.log10(shown.max())
    middle = (low + high) / 2
    # Of durations that are all alike, the noise is not to fill the picture.
    low, high = min(low, middle - 0.5), max(high, middle + 0.5)
    edges = np.logspace(low, high, 36)
    parts = [
        (shown[which], colour, label)
        for which, colour, label in ((ok, OK, "ok"), (~ok, NOT_OK, "not ok"))
        if which.any()
    ]
    axes.hist(
        [values for values, _, _ in parts],
        bins=list(edges),
        stacked=True,
        color=[colour for _, colour, _ in parts],
        label=[label for _, _, label in parts],
    )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(_duration)
    axes.xaxis.set_minor_formatter("")
    _whole_numbers(axes)
    _legend(axes, needed=not ok.all())
    return figure


def _sizes(sizes: Any, seconds: Any, ok: Any) -> "Figure":
    figure, axes = _axes("Sizes", "size of the input", "time")
    chosen = np.flatnonzero(sizes > 0)
    if len(chosen) > _POINTS:
        # The same ones each time.
        chosen = np.random.default_rng(0).choice(chosen, _POINTS, replace=False)
    for which, colour, label in ((ok, OK, "ok"), (~ok, NOT_OK, "not ok")):
        these = chosen[which[chosen]]
        axes.scatter(
            sizes[these],
            np.maximum(seconds[these], 1e-5),
            s=9,
            color=colour,
            alpha=0.45,
            linewidths=0,
            label=label,
            # Thousands of points as a picture: a page of megabytes opens slowly.
            rasterized=len(chosen) > 500,
        )
    axes.set(xscale="log", yscale="log")
    axes.xaxis.set_major_formatter(_bytes)
    axes.yaxis.set_major_formatter(_duration)
    axes.xaxis.set_minor_formatter("")
    axes.yaxis.set_minor_formatter("")
    _legend(axes, needed=not ok.all())
    return figure


def _whole_numbers(axes: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))


def _legend(axes: "Axes", *, needed: bool) -> None:
    if needed:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _column(table: pa.Table, name: str) -> Any:
    return table[name].to_numpy().astype(float)


def _time_unit(whole: float) -> tuple[float, str]:
    for least, unit, name in _TIME_UNITS:
        if whole >= least:
            return unit, name
    return 1.0, "s"


def _duration(seconds: float, _: Any = None) -> str:
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= unit:
            return f"{seconds / unit:,.4g} {name}"
    return f"{seconds:g} s"


def _bytes(count: float, _: Any = None) -> str:
    for unit, name in _SIZE_UNITS:
        if count >= unit:
            return f"{count / unit:,.4g} {name}"
    return f"{count:,.4g} B"
