"""Charts as SVG: axes with ticks, bars, stacked areas and points."""

import base64
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html import escape
from typing import Any, NamedTuple

import numpy as np

_WIDTH, _PLOT_HEIGHT = 460.0, 170.0
_RIGHT = 448.0
_LINE = 18.0
_TICKS = 5
# With fewer decades than this, a logarithmic axis also marks 2 and 5.
_FEW_DECADES = 2
_CHARACTER = 7.4
# More points than this cover each other, so they are transparent.
_FEW_POINTS = 300
# A grey that is readable on white and on black, because a picture in another page does not know the
# background. A page can replace it: `color` of the CSS wins over this attribute.
_STYLE = 'color="#7a7a7a" font-family="sans-serif" font-size="12"'
_GRID = 'stroke="currentColor" stroke-opacity="0.2"'


class Series(NamedTuple):
    """One data series of a chart: its label and its colour."""

    label: str
    colour: str


@dataclass(frozen=True, kw_only=True)
class Axis:
    """An axis from `low` to `high`, both included.

    Attributes:
        label: Its text, with the unit.
        low: The lowest value.
        high: The highest value.
        log: True if its scale is logarithmic.
        whole: True if its values are counts. Only whole numbers are marked.
        text: Returns the text of a mark.
    """

    label: str
    low: float
    high: float
    log: bool = False
    whole: bool = False
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
        >>> Axis(label="", low=0, high=2.1, whole=True).ticks()
        [0.0, 1.0, 2.0]
        """
        if self.log:
            return self._log_ticks()
        rough = (self.high - self.low) / _TICKS or 1.0
        if self.whole:
            rough = max(rough, 1.0)
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
        first, last = math.ceil(self.low / step), math.floor(self.high / step + 1e-9)
        return [count * step for count in range(first, last + 1)]

    def _log_ticks(self) -> list[float]:
        low, high = math.log10(self.low), math.log10(self.high)
        powers = range(math.floor(low), math.floor(high) + 1)
        if high - low < _FEW_DECADES:
            marks = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
            return [mark for mark in marks if self.low <= mark <= self.high]
        powers = range(math.ceil(low), math.floor(high) + 1)
        return [10.0**power for power in powers[:: math.ceil(len(powers) / _TICKS)]]

    def _scaled(self, values: Any) -> Any:
        return np.log10(values) if self.log else np.asarray(values, float)


class Chart:
    """One chart. The methods add marks, and `svg` returns the picture."""

    def __init__(self, title: str, x: Axis, y: Axis) -> None:
        self._title, self._x, self._y = title, x, y
        self._left = 16 + max(_width(y.text(value)) for value in y.ticks())
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
        places = zip(self._across(xs), self._up(ys), strict=True)
        path = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in places)
        opacity = 0.45 if len(xs) > _FEW_POINTS else 0.9
        style = f'stroke-width="4" stroke-linecap="round" stroke-opacity="{opacity}"'
        self._add(series, f'<path d="{path}" stroke="{series.colour}" {style}/>')

    def svg(self, *, legend: bool) -> str:
        """Return the chart as an SVG element."""
        entries, lines = self._legend() if legend else ([], 0)
        top = (2 + lines) * _LINE + 14
        height = top + _PLOT_HEIGHT + 42
        parts = [
            '<svg xmlns="http://www.w3.org/2000/svg"',
            f' viewBox="0 0 {_WIDTH:g} {height:g}" {_STYLE}>',
            _text(0, 14, self._title, "start", 'font-weight="bold"'),
            *entries,
            _text(0, top - 10, self._y.label, "start"),
            f'<g transform="translate(0 {top:g})">',
            *self._across_ticks(),
            *self._up_ticks(),
            *self._marks,
            f'<path d="M{self._left:.1f} 0V{_PLOT_HEIGHT:g}H{_RIGHT:g}" fill="none"',
            ' stroke="currentColor"/>',
            "</g></svg>",
        ]
        return "".join(parts)

    def _add(self, series: Series, mark: str) -> None:
        self._series.append(series)
        self._marks.append(mark)

    def _across(self, values: Any) -> Any:
        return self._x.place(values, self._left, _RIGHT)

    def _up(self, values: Any) -> Any:
        return self._y.place(values, _PLOT_HEIGHT, 0.0)

    def _across_ticks(self) -> Iterator[str]:
        yield _text((self._left + _RIGHT) / 2, _PLOT_HEIGHT + 36, self._x.label, "middle")
        for value in self._x.ticks():
            x, text = float(self._across(value)), self._x.text(value)
            yield f'<path d="M{x:.1f} 0V{_PLOT_HEIGHT:g}" {_GRID}/>'
            # The text of the last mark must not leave the picture.
            middle = min(x, _WIDTH - _width(text) / 2)
            yield _text(middle, _PLOT_HEIGHT + 17, text, "middle")

    def _up_ticks(self) -> Iterator[str]:
        for value in self._y.ticks():
            y = float(self._up(value))
            yield f'<path d="M{self._left:.1f} {y:.1f}H{_RIGHT:g}" {_GRID}/>'
            yield _text(self._left - 6, y + 4, self._y.text(value), "end")

    def _legend(self) -> tuple[list[str], int]:
        """Return the entries of the legend, and the number of their lines."""
        parts, x, line = [], 0.0, 1
        for series in self._series:
            width = 30 + _width(series.label)
            if x and x + width > _WIDTH:
                x, line = 0.0, line + 1
            y = 14 + line * _LINE
            box = f'x="{x:g}" y="{y - 9:g}" width="10" height="10"'
            parts += [
                f'<rect {box} fill="{series.colour}"/>',
                _text(x + 14, y, series.label, "start"),
            ]
            x += width
        return parts, line


def as_data_url(svg: str) -> str:
    """Return a URL that holds an SVG picture."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def _width(text: str) -> float:
    """Return about the width of a text in pixels, without knowing the font."""
    return len(text) * _CHARACTER


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {where} fill="currentColor" {more}>{escape(text)}</text>'
