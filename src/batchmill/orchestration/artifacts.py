"""The artifacts of a run in the Prefect UI, and the summary page as Markdown."""

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import Any
from uuid import UUID

from prefect.artifacts import Artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate

from batchmill.core.digests import readable_id
from batchmill.core.outcome import start_of
from batchmill.core.sizes import counted, duration, readable_size
from batchmill.datasets.publishing.failure_groups import FailureGroup
from batchmill.datasets.publishing.report import Facts, Report
from batchmill.datasets.publishing.report.svg import as_data_url
from batchmill.datasets.publishing.run_summary import Summary
from batchmill.orchestration.server.api import API_ERRORS, without_retries
from batchmill.runs.progress import Failure

logger = logging.getLogger(__name__)

# Prefect's table breaks no lines, and cuts the right side. With the outcome, these columns fill the
# 567 pixels that the page leaves at a width of 1,200 pixels.
_REASON_CHARACTERS, _INPUT_CHARACTERS = 36, 30
# After an error of the server, an artifact is not sent for this time.
_PAUSE_SECONDS = 30.0
_DIGITS = 4
_SHOWN_GROUPS = 20
# At a width of 1,200 pixels, Prefect's page has a column of 567 pixels for the text. Prefect breaks
# no words in code, so a longer word would be below the page's right column. The first number is for
# a line of text, and the second for the last column of a table.
_WORD_CHARACTERS, _CELL_CHARACTERS = 56, 30


class LiveArtifact:
    """One artifact. The first call of `show` creates it, and later calls update it.

    Attributes:
        id: The id of the artifact. None before the server has accepted it.
    """

    def __init__(self) -> None:
        self.id: UUID | None = None
        self._shown: Artifact | None = None
        self._next = 0.0

    def show(self, artifact: Artifact) -> None:
        """Create the artifact, or update its data and description if they have changed.

        An error of the server does not end the run. A later call sends the artifact again, but no
        request is sent for 30 s after an error.

        Args:
            artifact: The artifact with its data and description.
        """
        if artifact == self._shown or time.monotonic() < self._next:
            return
        try:
            with without_retries():
                self._send(artifact)
        except API_ERRORS as error:
            self._next = time.monotonic() + _PAUSE_SECONDS
            logger.warning("the artifact %s could not be sent to Prefect: %s", artifact.key, error)
            return
        self._shown = artifact

    def _send(self, artifact: Artifact) -> None:
        if self.id is None:
            made: Any = artifact.create(_sync=True)  # type: ignore[call-arg]
            self.id = made.id
            return
        data: Any = artifact.format(_sync=True)  # type: ignore[call-arg]
        update = ArtifactUpdate(data=data, description=artifact.description)
        with get_client(sync_client=True) as client:
            client.update_artifact(self.id, update)


def failure_rows(failures: Iterable[Failure]) -> list[dict[str, object]]:
    """Return the rows of the artifact with the failures, the most frequent reasons first.

    They have short names and reasons.
    """
    rows = [
        {
            "reason": start_of(failure.reason, _REASON_CHARACTERS),
            "input": shortened_name(failure.input, _INPUT_CHARACTERS),
            "outcome": failure.outcome,
            "attempts": failure.attempts,
        }
        for failure in failures
    ]
    inputs = Counter(row["reason"] for row in rows)
    return sorted(rows, key=lambda row: (-inputs[row["reason"]], str(row["reason"])))


def artifact_key(kind: str, dataset: str) -> str:
    """Return an artifact's key: KIND-NAME-HASH. It is the same for all runs over a dataset.

    Prefect shows the key as a title, so the hash is short. It distinguishes datasets of one name.

    >>> artifact_key("progress", "/data/Clips 2024")
    'progress-clips-2024-ed8e'
    """
    return f"{kind}-{readable_id('dataset', Path(dataset).name, dataset, _DIGITS)}".lower()


def summary_text(report: Report) -> str:
    """Return the page: counts, throughput, failures by cause, charts and the slowest inputs."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    facts = report.facts
    summary = facts.summary
    yield f"# {summary.sentence()}\n"
    yield f"Dataset {code(facts.dataset)}, step {code(facts.spec.step)}, run {summary.run}.\n"
    for line in facts.adoptions:
        yield f"{line[0].upper()}{line[1:]}\n"
    if len(facts.failures):
        yield from _failures(facts)
    yield "\n## Counts\n\n| | |\n|---|---|"
    yield from (f"| {label} | {number} |" for label, number in facts.numbers())
    for name, count in summary.partitions.items():
        yield f"| in partition {name} | {count:,} |"
    if len(facts.executed):
        yield from _executed(report)
    yield f"\nThe file {code('report.html')} in the dataset also has tracebacks and printed output."


def _failures(facts: Facts) -> Iterator[str]:
    yield "\n## Failures\n"
    yield from map(_group, facts.summary.groups[:_SHOWN_GROUPS])
    if len(facts.summary.groups) > _SHOWN_GROUPS:
        yield f"\n... and {len(facts.summary.groups) - _SHOWN_GROUPS:,} more groups."
    if facts.summary.groups[0].command:
        yield "\nTo run the step on an input of group 1 and see its traceback:"
        yield f"\n```\n{facts.summary.groups[0].command}\n```"
    yield "\nFix the step or the inputs, and start the run again. It executes what changed."
    yield "If nothing has to change, first mark the failed inputs for the next run:"
    yield f"\n```\nbatchmill retry {quote(facts.dataset)}\n```"


def _group(group: FailureGroup) -> str:
    # A list has no width of its own, unlike a table with long names.
    more = ", ..." if group.inputs > len(group.examples) else ""
    names = ", ".join(map(code, group.examples))
    count = counted(group.inputs, "input")
    return f"{group.number}. **{count}**, {group.outcome}: {code(group.reason)}: {names}{more}"


def _executed(report: Report) -> Iterator[str]:
    yield "\n## Charts\n"
    for label, svg in report.pictures:
        yield f"![{label}]({as_data_url(svg)})\n"
    yield "## The slowest inputs\n"
    yield "| time | size | outcome | input |"
    yield "|---:|---:|---|---|"
    for record in report.facts.slowest():
        size = readable_size(record["size"]) if record["size"] >= 0 else ""
        took = duration(record["seconds"])
        name = code(record["input"], _CELL_CHARACTERS).replace("|", "\\|")
        yield f"| {took} | {size} | {record['outcome']} | {name} |"


def final_message(summary: Summary, reasons: Sequence[str], summary_key: str) -> str:
    """Return the state message of a Failed run. Prefect shows it in narrow columns.

    Args:
        summary: The counts of the run.
        reasons: Why the run ended early, one sentence each.
        summary_key: The key of the artifact that lists the failed inputs.
    """
    sentences = [f"{summary.sentence()}.", *filter(None, [summary.unpublished]), *reasons]
    for group in summary.groups[:1]:
        words = f"Group 1, {group.who}: {group.reason.removesuffix('.')}.".split()
        sentences += [shortened_name(word, _CELL_CHARACTERS) for word in words]
    if summary.failed:
        sentences.append(f"All reasons are in the artifact {summary_key}.")
    return " ".join(sentences)


def code(text: str, characters: int = _WORD_CHARACTERS) -> str:
    """Return text as Markdown code. Only the ends of long words are kept.

    >>> code("a`<i>"), code("/data/recordings/a.wav is empty", 12)
    ("`a'<i>`", '`...ngs/a.wav is empty`')
    """
    words = [shortened_name(word, characters) for word in text.split()]
    line = " ".join(words).replace("`", "'")
    return f"`{line}`" if line else ""


def shortened_name(name: str, characters: int) -> str:
    """Return the end of a name, which differs between inputs more often than the beginning.

    >>> shortened_name("recordings/session_00/take_1.wav", 16)
    '...00/take_1.wav'
    """
    return name if len(name) <= characters else f"...{name[3 - characters :]}"
