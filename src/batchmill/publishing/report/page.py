"""Write the page `report.html`. It is self-contained, so it can be read offline."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jinja2

from batchmill.layout import REPORT
from batchmill.ledger.ledger import Ledger
from batchmill.publishing.report.facts import SHOWN_FAILURES, Facts, gather
from batchmill.publishing.report.figures import figures
from batchmill.sizes import readable_size
from batchmill.version import VERSION


class Report(NamedTuple):
    """The content of a page: facts, and pictures (description and SVG of each)."""

    facts: Facts
    pictures: Sequence[tuple[str, str]]


def write_report(ledger: Ledger, run: int, dataset: str) -> Report:
    """Write a dataset's report.html, and return its content. The file is replaced atomically.

    Raises:
        StoreError: The file cannot be written.
    """
    facts = gather(ledger, run, dataset)
    report = Report(facts, list(figures(facts)))
    ledger.store.write(REPORT, render(report).encode())
    return report


def render(report: Report) -> str:
    """Return the page as HTML. All values from inputs and steps are escaped."""
    facts = report.facts
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.PackageLoader("batchmill.publishing.report", ""),
    )
    environment.filters |= {"size": readable_size, "duration": duration, "moment": _moment}
    return environment.get_template("page.html").render(
        facts=facts,
        summary=facts.summary,
        figures=report.pictures,
        shown_failures=facts.failures[:SHOWN_FAILURES].to_pylist(),
        version=VERSION,
        now=time.time(),
    )


def duration(seconds: float) -> str:
    """Return a duration as readable text.

    >>> duration(0.0123), duration(3.21), duration(75), duration(7384)
    ('12 ms', '3.2 s', '1 min 15 s', '2 h 03 min')
    """
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def _moment(at: Any) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
