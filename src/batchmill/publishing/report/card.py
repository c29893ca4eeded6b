"""Describe a run in a small piece of HTML, for the output of a notebook's cell."""

import os
from urllib.parse import quote

from batchmill.layout import FAILURES_CSV, METADATA_CSV, REPORT
from batchmill.ledger.ledger import Ledger
from batchmill.outcome import one_line, visible
from batchmill.planning.run_spec import read_spec
from batchmill.publishing.failure_groups import read_failures
from batchmill.publishing.report.figures import NOT_OK, OK
from batchmill.publishing.report.gallery import Limits, gather_gallery
from batchmill.publishing.report.page import load_template
from batchmill.publishing.summary import Summary
from batchmill.storage import is_url

_SHOWN_FAILURES, _NAME_CHARACTERS = 10, 100
# A notebook is saved with its outputs, so each has to stay small.
_LIMITS = Limits(samples=8, embedded_bytes=300_000)
_SHOWN_KINDS = ("picture", "sound")


def run_card(ledger: Ledger, summary: Summary, dataset: str) -> str:
    """Return the counts of a run, its first failures and a few of its files as HTML.

    All values from inputs and steps are escaped. The colours of texts are those of the page around
    it, so that the card is readable in light and in dark themes.

    Args:
        ledger: The ledger of the dataset.
        summary: The summary of the run.
        dataset: The path or URL of the dataset.
    """
    failures = read_failures(ledger).table
    shown = failures[:_SHOWN_FAILURES].to_pylist()
    names = [failure["input"] for failure in shown]
    gallery = gather_gallery(ledger.store, names, read_spec(ledger, summary.run).root, _LIMITS)
    tables = {REPORT, METADATA_CSV, *([FAILURES_CSV] if names else [])}
    return load_template("card.html").render(
        summary=summary,
        dataset=dataset,
        folder=_folder(dataset),
        files=[] if is_url(dataset) else sorted(tables & {*ledger.store.names("")}, reverse=True),
        failures=[
            (_shown(one["input"]), one["outcome"], one_line(one["error"], one["message"]), picture)
            for one in shown
            for picture in [gallery.failed.get(one["input"], "")]
        ],
        more=len(failures) - len(shown),
        samples=[one for one in gallery.samples if one.preview.kind in _SHOWN_KINDS],
        shown=_shown,
        ok=OK.colour,
        not_ok=NOT_OK.colour,
    )


def _folder(dataset: str) -> str:
    """Return the address of a local dataset, relative to the working folder.

    A notebook is shown below the address of its folder, and its kernel works in that folder.
    """
    return "" if is_url(dataset) else quote(os.path.relpath(dataset))


def _shown(name: str) -> str:
    text = visible(name)
    return text if len(text) <= _NAME_CHARACTERS else f"... {text[-_NAME_CHARACTERS:]}"
