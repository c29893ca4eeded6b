"""Charts as SVG: axes with ticks, bars, stacked areas and points."""

import base64
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, NamedTuple

import numpy as np

_WIDTH, _HEIGHT = 600.0, 270.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 70.0, 588.0, 34.0, 226.0
_TICKS = 5
_TICK_PIXELS = 6.5
_STYLE = "font-family:sans-serif;font-size:11px;fill:#444"


class Series(NamedTuple):
    """One data series of a chart: its label and its colour."""

    label: str
    colour: str


@dataclass(frozen=True, kw_only=True)
class Axis:
    """An axis from `low` to `high`, both included. With `log`, its scale is logarithmic."""

    label: str
    low: float
    high: float
    log: bool = False
    text: Callable[[float], str] = field(default=lambda value: f"{value:,.6g}")

    def place(self, values: Any, start: float, end: float) -> Any:
        """Return the positions of values in pixels, if the axis goes from `start` to `end`."""
        low, high = self._scaled(self.low), self._scaled(self.high)
        return start + (self._scaled(values) - low) / ((high - low) or 1.0) * (end - start)

    def ticks(self) -> list[float]:
        """Return about five round values to mark.

        >>> Axis(label="", low=0, high=37).ticks()
        [0.0, 10.0, 20.0, 30.0]
        >>> Axis(label="", low=0.02, high=30, log=True).ticks()
        [0.1, 1.0, 10.0]
        """
        if self.log:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
            each = max(1, (last - first + 1) // _TICKS)
            return [10.0**power for power in range(first, last + 1, each)]
        rough = (self.high - self.low) / _TICKS or 1.0
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
        first, last = math.ceil(self.low / step), math.floor(self.high / step + 1e-9)
        return [count * step for count in range(first, last + 1)]

    def _scaled(self, values: Any) -> Any:
        return np.log10(values) if self.log else np.asarray(values, float)


class Chart:
    """One chart. The methods add marks, and `svg` returns the picture."""

    def __init__(self, title: str, x: Axis, y: Axis) -> None:
        self._title, self._x, self._y = title, x, y
        self._marks: list[str] = []
        self._series: list[Series] = []

    def bars(self, series: Series, edges: Any, bottoms: Any, tops: Any) -> None:
        """Add one bar per pair of adjacent edges."""
        lefts, rights = self._across(edges[:-1]), self._across(edges[1:])
        rows = zip(lefts, rights, self._up(tops), self._up(bottoms), strict=True)
        path = "".join(
            f"M{left:.1f} {bottom:.1f}V{top:.1f}H{right:.1f}V{bottom:.1f}Z"
            for left, right, top, bottom in rows
            if bottom - top > 0
        )
        self._add(series, f'<path d="{path}" fill="{series.colour}"/>')

    def area(self, series: Series, at: Any, bottoms: Any, tops: Any) -> None:
        """Add the area between two lines."""
        there = zip(self._across(at), self._up(tops), strict=True)
        back = zip(self._across(at)[::-1], self._up(bottoms)[::-1], strict=True)
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (*there, *back))
        self._add(series, f'<polygon points="{points}" fill="{series.colour}"/>')

    def points(self, series: Series, xs: Any, ys: Any) -> None:
        """Add a point for each pair."""
        path = "".join(
            f"M{x:.1f} {y:.1f}h0" for x, y in zip(self._across(xs), self._up(ys), strict=True)
        )
        style = 'stroke-width="4" stroke-linecap="round" stroke-opacity="0.45"'
        self._add(series, f'<path d="{path}" stroke="{series.colour}" {style}/>')

    def svg(self, *, legend: bool) -> str:
        """Return the chart as an SVG element."""
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}"',
            f' style="{_STYLE}">',
            _text(_LEFT, 16, self._title, "start", 'font-weight="bold"'),
            *self._across_ticks(),
            *self._up_ticks(),
            *self._marks,
            f'<path d="M{_LEFT} {_TOP}V{_BOTTOM}H{_RIGHT}" fill="none" stroke="#888"/>',
            *(self._legend() if legend else []),
            "</svg>",
        ]
        return "".join(parts)

    def _add(self, series: Series, mark: str) -> None:
        self._series.append(series)
        self._marks.append(mark)

    def _across(self, values: Any) -> Any:
        return self._x.place(values, _LEFT, _RIGHT)

    def _up(self, values: Any) -> Any:
        return self._y.place(values, _BOTTOM, _TOP)

    def _across_ticks(self) -> Sequence[str]:
        middle = (_LEFT + _RIGHT) / 2
        parts = [_text(middle, _BOTTOM + 36, self._x.label, "middle")]
        for value in self._x.ticks():
            x = float(self._across(value))
            parts.append(f'<path d="M{x:.1f} {_TOP}V{_BOTTOM}" stroke="#e8e8e8"/>')
            parts.append(_text(x, _BOTTOM + 16, self._x.text(value), "middle"))
        return parts

    def _up_ticks(self) -> Sequence[str]:
        middle = (_TOP + _BOTTOM) / 2
        turned = f'transform="rotate(-90 14 {middle:g})"'
        parts = [_text(14, middle, self._y.label, "middle", turned)]
        for value in self._y.ticks():
            y = float(self._up(value))
            parts.append(f'<path d="M{_LEFT} {y:.1f}H{_RIGHT}" stroke="#e8e8e8"/>')
            parts.append(_text(_LEFT - 6, y + 4, self._y.text(value), "end"))
        return parts

    def _legend(self) -> Sequence[str]:
        parts, x = [], _RIGHT
        for series in reversed(self._series):
            x -= len(series.label) * _TICK_PIXELS
            parts.append(_text(x, 16, series.label, "start"))
            x -= 14
            parts.append(f'<rect x="{x:.1f}" y="7" width="10" height="10" fill="{series.colour}"/>')
            x -= 12
        return parts


def as_data_url(svg: str) -> str:
    """Return a URL that holds an SVG picture."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(text)}</text>'
