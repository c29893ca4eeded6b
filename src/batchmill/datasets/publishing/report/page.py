"""Write the page `report.html`, and the card of a run for the output of a notebook's cell.

The page is self-contained, so it can be read offline.
"""

import os
import time
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from batchmill.core.layout import FAILURES_CSV, METADATA_CSV, REPORT
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.outcome import one_line, start_of, visible
from batchmill.core.planning.run_spec import read_spec
from batchmill.core.sizes import counted, duration, readable_size
from batchmill.core.storage import is_url
from batchmill.datasets.publishing.failure_groups import read_failures
from batchmill.datasets.publishing.report.columns import describe_columns
from batchmill.datasets.publishing.report.facts import SHOWN_FAILURES, Facts, gather
from batchmill.datasets.publishing.report.gallery import Limits, gather_gallery
from batchmill.datasets.publishing.report.run_charts import NOT_OK, OK, figures
from batchmill.datasets.publishing.run_summary import Summary
from batchmill.version import VERSION

if TYPE_CHECKING:
    import jinja2

_MESSAGE_CHARACTERS, _MESSAGE_GROUPS = 300, 3
_SHOWN_GROUPS = 50
# The limits of a card. A notebook is saved with its outputs, so each has to stay small.
_CARD_LIMITS = Limits(samples=8, embedded_bytes=300_000)
_CARD_FAILURES = 10


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
    failed = facts.failures["input"].to_pylist()
    page = load_template("page.html").render(
        facts=facts,
        summary=facts.summary,
        figures=report.pictures,
        gallery=gather_gallery(ledger.store, failed, facts.spec.root),
        columns=describe_columns(ledger.store),
        message=message_text(facts),
        shown_groups=_SHOWN_GROUPS,
        shown_failures=facts.failures[:SHOWN_FAILURES].to_pylist(),
        now=time.time(),
    )
    # The path of a dataset may have bytes that are not UTF-8.
    ledger.store.write(REPORT, page.encode("utf-8", "replace"))
    return report


def load_template(name: str) -> "jinja2.Template":
    """Return a template of this package. It escapes all values."""
    return _environment().get_template(name)


@cache
def _environment() -> "jinja2.Environment":
    """Return the environment of all templates. It compiles a template once per process."""
    import jinja2  # It imports much, and a run that changes nothing writes no report.

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.PackageLoader("batchmill.datasets.publishing.report", ""),
    )
    environment.filters |= {"size": readable_size, "duration": duration, "moment": _moment}
    environment.filters |= {"counted": counted, "start": start_of, "end": _end, "visible": visible}
    environment.globals |= {"one_line": one_line, "version": VERSION}
    return environment


def message_text(facts: Facts) -> str:
    """Return a few lines about the dataset that a reader can copy into a message."""
    contents, groups, spec = facts.contents, facts.summary.groups, facts.spec
    step = " ".join([spec.step, *(f"{name}={value}" for name, value in spec.params.items())])
    lines = [
        f"{facts.name}: {facts.summary.sentence()}",
        f"Run {facts.summary.run}, {step}"[:_MESSAGE_CHARACTERS],
    ]
    if contents.outputs:
        lines.append(f"{counted(contents.outputs, 'file')}, {readable_size(contents.bytes)}")
    lines.append(facts.place)
    lines += [
        f"{group.inputs:,} {group.outcome}: {one_line(group.error, group.message)}"
        for group in groups[:_MESSAGE_GROUPS]
    ]
    if len(groups) > _MESSAGE_GROUPS:
        more = counted(len(groups) - _MESSAGE_GROUPS, "more group")
        lines.append(f"... and {more} of failed inputs")
    return "\n".join(lines)


def _end(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"... {text[-characters:]}"


def _moment(at: Any) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


def run_card(ledger: Ledger, summary: Summary, dataset: str) -> str:
    """Return the counts of a run, its first failures and a few of its files as HTML.

    All values from inputs and steps are escaped. The colours of texts are those of the page around
    it, so that the card is readable in light and in dark themes.

    Args:
        ledger: The ledger of the dataset.
        summary: The summary of the run.
        dataset: The path or URL of the dataset.
    """
    failures = read_failures(ledger.state()).table
    shown = failures[:_CARD_FAILURES].to_pylist()
    names = [failure["input"] for failure in shown]
    gallery = gather_gallery(ledger.store, names, read_spec(ledger, summary.run).root, _CARD_LIMITS)
    tables = {REPORT, METADATA_CSV, *([FAILURES_CSV] if names else [])}
    return load_template("card.html").render(
        summary=summary,
        dataset=dataset,
        folder=_folder(dataset),
        files=[] if is_url(dataset) else sorted(tables & {*ledger.store.names("")}, reverse=True),
        failures=shown,
        more=len(failures) - len(shown),
        gallery=gallery,
        ok=OK.colour,
        not_ok=NOT_OK.colour,
    )


def _folder(dataset: str) -> str:
    """Return the address of a local dataset, relative to the working folder.

    A notebook is shown below the address of its folder, and its kernel works in that folder.
    """
    return "" if is_url(dataset) else quote(os.fsencode(os.path.relpath(dataset)))
