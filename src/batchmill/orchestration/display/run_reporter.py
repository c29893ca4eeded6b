"""Sends a run's progress, failures, summary and events to Prefect."""

import logging
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from shlex import quote
from typing import Any
from uuid import UUID

from prefect.artifacts import Artifact, MarkdownArtifact, ProgressArtifact, TableArtifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.events import emit_event

from batchmill.digests import readable_id
from batchmill.orchestration.display.summary_text import shortened_name, summary_text
from batchmill.orchestration.resource_ids import resource_id
from batchmill.orchestration.server.api import API_ERRORS, without_retries
from batchmill.publishing.report import Report
from batchmill.publishing.summary import Summary, failure_message
from batchmill.runs.progress import Failure, Progress

logger = logging.getLogger(__name__)

STARTED, FINISHED = "batchmill.run.started", "batchmill.run.finished"
INPUT_FAILED = "batchmill.input.failed"
# Prefect's table breaks no lines, and cuts the right side. With the outcome, these columns fill the
# 567 pixels that the page leaves at a width of 1,200 pixels.
_REASON_CHARACTERS, _INPUT_CHARACTERS = 36, 30
# After an error of the server, an artifact is not sent for this time.
_PAUSE_SECONDS = 30.0
_DIGITS = 4


class LiveArtifact:
    """One artifact. The first call of `show` creates it, and later calls update it."""

    def __init__(self) -> None:
        self._id: UUID | None = None
        self._next = 0.0

    def show(self, artifact: Artifact) -> bool:
        """Create the artifact, or update its data and description.

        An error of the server does not end the run. A later call sends the artifact again.

        Args:
            artifact: The artifact with its data and description.

        Returns:
            True if the server has accepted the artifact. For 30 s after an error, no request is
            sent, and the result is False.
        """
        if time.monotonic() < self._next:
            return False
        try:
            with without_retries():
                self._send(artifact)
        except API_ERRORS as error:
            self._next = time.monotonic() + _PAUSE_SECONDS
            logger.warning("the artifact %s could not be sent to Prefect: %s", artifact.key, error)
            return False
        return True

    def _send(self, artifact: Artifact) -> None:
        if self._id is None:
            made: Any = artifact.create(_sync=True)  # type: ignore[call-arg]
            self._id = made.id
            return
        data: Any = artifact.format(_sync=True)  # type: ignore[call-arg]
        update = ArtifactUpdate(data=data, description=artifact.description)
        with get_client(sync_client=True) as client:
            client.update_artifact(self._id, update)


class RunReporter:
    """Sends artifacts and events about one run to Prefect, during the run and at its end."""

    def __init__(self, dataset: str, run: int) -> None:
        self._dataset = dataset
        self._run = run
        self._progress, self._failures, self._summary = (LiveArtifact() for _ in range(3))
        self._done = -1
        self._failed = 0
        self._told = 0

    def begin(self, *, inputs: int, pending: int, step: str) -> None:
        """Send the event that the run has started, with the number of inputs."""
        self._emit(STARTED, {"inputs": inputs, "pending": pending, "step": step})

    def show(self, progress: Progress) -> None:
        """Send the new failures, and update the artifacts that have changed."""
        for failure in progress.failures[self._told :]:
            self._emit(INPUT_FAILED, failure._asdict())
        self._told = len(progress.failures)
        if progress.done != self._done and self._show_progress(progress):
            self._done = progress.done
        if progress.failed != self._failed and self._show_failures(progress):
            self._failed = progress.failed

    def end(self, summary: Summary, state: str) -> None:
        """Send the event that the run has ended.

        Args:
            summary: The counts of outcomes.
            state: The name of the flow run's final state.
        """
        message = failure_message(summary, self._dataset)
        self._emit(
            FINISHED,
            summary.as_json() | {"state": state, "message": message},
            # A trigger can match labels, but not the payload.
            {"batchmill.state": state, "batchmill.not-ok": str(summary.failed)},
        )

    def sum_up(self, report: Report) -> None:
        """Show the summary page of the dataset and the run."""
        artifact = MarkdownArtifact(
            key=artifact_key("summary", self._dataset),
            markdown=summary_text(report),
            description=f"{report.facts.summary.sentence()}. Dataset: `{self._dataset}`",
        )
        self._summary.show(artifact)

    def _show_progress(self, progress: Progress) -> bool:
        share = 100.0 * progress.done / progress.total if progress.total else 100.0
        failed = f", {progress.failed:,} not ok" if progress.failed else ""
        artifact = ProgressArtifact(
            key=artifact_key("progress", self._dataset),
            progress=share,
            description=f"{progress.done:,} of {progress.total:,} inputs{failed}",
        )
        return self._progress.show(artifact)

    def _show_failures(self, progress: Progress) -> bool:
        rows = failure_rows(progress.failures)
        cut = f". The first {len(rows):,} are shown" if progress.failed > len(rows) else ""
        artifact = TableArtifact(
            key=artifact_key("failures", self._dataset),
            table=rows,
            description=f"{progress.failed:,} not ok in run {self._run}{cut}. "
            f"For whole names and tracebacks: `batchmill failures {quote(self._dataset)}`",
        )
        return self._failures.show(artifact)

    def _emit(
        self, event: str, payload: dict[str, object], labels: dict[str, str] | None = None
    ) -> None:
        # Prefect sends the event from another thread, and adds the id of the flow run.
        emit_event(
            event,
            resource={
                "prefect.resource.id": resource_id("dataset", self._dataset),
                "prefect.resource.name": self._dataset,
                **(labels or {}),
            },
            payload={"dataset": self._dataset, "run": self._run} | payload,
        )


def failure_rows(failures: Iterable[Failure]) -> list[dict[str, object]]:
    """Return the rows of the artifact with the failures, the most frequent reasons first.

    They have short names and reasons.
    """
    rows = [
        {
            "reason": _shortened(one.reason),
            "input": shortened_name(one.input, _INPUT_CHARACTERS),
            "outcome": one.outcome,
            "attempts": one.attempts,
        }
        for one in failures
    ]
    inputs = Counter(row["reason"] for row in rows)
    return sorted(rows, key=lambda row: (-inputs[row["reason"]], str(row["reason"])))


def _shortened(reason: str) -> str:
    end = "" if len(reason) <= _REASON_CHARACTERS else " ..."
    return f"{reason[:_REASON_CHARACTERS]}{end}"


def artifact_key(kind: str, dataset: str) -> str:
    """Return an artifact's key: KIND-NAME-HASH. It is the same for all runs over a dataset.

    Prefect shows the key as a title, so the hash is short. It distinguishes datasets of one name.

    >>> artifact_key("progress", "/data/Clips 2024")
    'progress-clips-2024-ed8e'
    """
    return f"{kind}-{readable_id('dataset', Path(dataset).name, dataset, _DIGITS)}".lower()
