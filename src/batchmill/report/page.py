"""The page `report.html`: self-contained, to be read offline."""

import time
from importlib import resources
from typing import Any

import jinja2

from batchmill import __version__
from batchmill.ledger import Ledger
from batchmill.report.facts import SHOWN_FAILURES, Facts, gather
from batchmill.report.figures import as_svg, figures
from batchmill.sizes import readable_size
from batchmill.verify import REPORT


def write_report(ledger: Ledger, run: int, dataset: str) -> Facts:
    """Write a dataset's report, replaced at once; returns what it tells.

    Raises StoreError if it cannot be written.
    """
    facts = gather(ledger, run, dataset)
    ledger.store.write(REPORT, render(facts).encode())
    return facts


def render(facts: Facts) -> str:
    """Return the page. Whatever comes from inputs and steps is escaped."""
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FunctionLoader(_template),
    )
    environment.filters |= {"size": readable_size, "duration": duration, "moment": _moment}
    drawn = [(label, as_svg(figure)) for label, figure in figures(facts)]
    return environment.get_template("page.html").render(
        facts=facts,
        summary=facts.summary,
        figures=drawn,
        shown_failures=facts.failures[:SHOWN_FAILURES].to_pylist(),
        version=__version__,
        now=time.time(),
    )


def duration(seconds: float) -> str:
    """Write a duration for people.

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


def _template(name: str) -> str:
    return resources.files(__package__ or "batchmill.report").joinpath(name).read_text("utf-8")


def _moment(at: Any) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
