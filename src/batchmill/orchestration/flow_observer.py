"""Shows a run in Prefect: its events, artifacts and state. Its tables are written by tasks."""

from dataclasses import dataclass
from shlex import quote
from typing import Any
from uuid import UUID

from prefect.artifacts import MarkdownArtifact, ProgressArtifact, TableArtifact
from prefect.client.schemas.objects import State
from prefect.events import emit_event
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Crashed, Failed
from prefect.utilities.annotations import opaque

from batchmill.core.ledger.lease import Wait
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.planning.prepare import Prepared
from batchmill.datasets.publishing.run_message import failure_message
from batchmill.datasets.publishing.run_summary import Summary
from batchmill.orchestration.artifacts import (
    LiveArtifact,
    artifact_key,
    failure_rows,
    final_message,
    summary_text,
)
from batchmill.orchestration.cancellation import Cancellation
from batchmill.orchestration.metrics import RunMetrics
from batchmill.orchestration.server.api import end_flow_run, event_resource
from batchmill.runs.execute import RunEnd, RunObserver
from batchmill.runs.progress import Progress
from batchmill.runs.run import Run
from batchmill.tasks.dataset import assets_at, write_metadata, write_report

# The last flow run is searched in this number of runs.
_MOST_IDLE = 20


def _end_of(last: int, run: Run) -> State[Any]:
    """Return the final state of an earlier run, for a flow run without one."""
    ended = run.ledger.read_summary(last)
    if ended is None:
        return Crashed(message=f"The process was killed. Run {run.number} resumes the work.")
    message = "Prefect's server did not respond when this run ended."
    return Completed(message=message) if ended["accepted"] else Failed(message=message)


@dataclass
class FlowObserver(RunObserver):
    """Shows one run as a flow run.

    Args:
        cancellation: Detects that the flow run is cancelled.
        wait: Wait while another run holds the dataset, with these actions. None: do not wait.
    """

    cancellation: Cancellation
    wait: Wait | None

    def begin(self, run: Run) -> None:
        """Send the event that the run has started."""
        job = run.prepared.job
        self._dataset, self._run, self._policy = job.output, run.number, job.options.failures
        self._progress_artifact, self._failures_artifact = LiveArtifact(), LiveArtifact()
        self._sent_failures: set[str] = set()
        self.metrics = RunMetrics(job.output, job.step)
        self.metrics.pending(run.pending)
        inputs = len(run.prepared.manifest)
        payload = {"inputs": inputs, "pending": run.pending, "step": job.step}
        self._emit("batchmill.run.started", payload)

    def planned(self, run: Run) -> None:
        """Record the id of this flow run. End the previous one in Prefect if it could not do so."""
        flow_run_id, control = str(flow_run.get_id()), run.ledger.control
        control.record_flow_run(run.number, flow_run_id)
        # Runs without work have no flow run.
        for last in range(run.number - 1, max(0, run.number - _MOST_IDLE), -1):
            before = control.read_flow_run(last)
            # After Retry in Prefect, the same flow run makes another run over the dataset.
            if before and before != flow_run_id:
                end_flow_run(UUID(before), _end_of(last, run))
            if before:
                break

    def show(self, progress: Progress) -> None:
        """Log and send the new failures, and update the artifacts that have changed."""
        for failure in progress.failures:
            if failure.input in self._sent_failures:
                continue
            self._sent_failures.add(failure.input)
            get_run_logger().error("%s: %s: %s", failure.input, failure.outcome, failure.reason)
            self._emit("batchmill.input.failed", failure._asdict())
        share = 100.0 * progress.done / progress.total if progress.total else 100.0
        failed = f", {progress.failed:,} not ok" if progress.failed else ""
        artifact = ProgressArtifact(
            key=artifact_key("progress", self._dataset),
            progress=share,
            description=f"{progress.done:,} of {progress.total:,} inputs{failed}",
        )
        self._progress_artifact.show(artifact)
        if progress.failed or self._failures_artifact.id:
            self._show_failures(progress)
        self.metrics.pending(progress.total - progress.done)

    def write_tables(self, prepared: Prepared, run: int) -> str:
        """Write the tables in a task run. Return why nothing was published. Usually empty."""
        hidden: Any = opaque(prepared)  # Keeps Prefect from searching it for futures.
        job = prepared.job
        task = write_metadata.with_options(
            assets=assets_at(job.output), asset_deps=[*assets_at(job.manifest)]
        )
        state: State[Any] = task(hidden, run, return_state=True)
        if state.name != "Unpublished" and not state.is_completed():
            state.result()  # Raises the error of the task.
        return "" if state.is_completed() else state.message or ""

    def write_report(self, ledger: Ledger, run: int, dataset: str) -> None:
        """Write the report in a task run, and show it as an artifact."""
        hidden: Any = opaque(ledger)
        report = write_report(hidden, run, dataset)
        artifact = MarkdownArtifact(
            key=artifact_key("summary", dataset),
            markdown=summary_text(report),
            description=f"{report.facts.summary.sentence()}. Dataset: `{dataset}`",
        )
        LiveArtifact().show(artifact)

    def end(self, summary: Summary, *, is_cancelled: bool) -> None:
        """Send the event that the run has ended."""
        accepted = "Completed" if summary.accepted(self._policy) else "Failed"
        state = "Cancelled" if is_cancelled else accepted
        message = failure_message(summary, self._dataset)
        self._emit(
            "batchmill.run.finished",
            summary.as_json() | {"state": state, "message": message},
            # A trigger can match labels, but not the payload.
            {"batchmill.state": state, "batchmill.not-ok": str(summary.failed)},
        )
        self.metrics.end(state)

    def final_state(self, ended: RunEnd) -> State[Any]:
        """Return the final state of the flow run."""
        summary = ended.summary
        if ended.is_cancelled:
            reason = self.cancellation.reason
            return Cancelled(message=f"Cancelled {reason}. {summary.sentence()}")
        if not summary.accepted(self._policy):
            lines = [failure_message(summary, self._dataset, self._policy), *ended.reasons]
            key = artifact_key("summary", self._dataset)
            message = final_message(summary, ended.reasons, key)
            # A caller of the flow and the end of its log get the whole text.
            return Failed(message=message, data="\n".join(lines))
        return Completed(message=summary.sentence(), data=summary.as_json())

    def _show_failures(self, progress: Progress) -> None:
        rows = failure_rows(progress.failures)
        cut = f". The first {len(rows):,} are shown" if progress.failed > len(rows) else ""
        artifact = TableArtifact(
            key=artifact_key("failures", self._dataset),
            table=rows,
            description=f"{progress.failed:,} not ok in run {self._run}{cut}. "
            f"For whole names and tracebacks: `batchmill failures {quote(self._dataset)}`",
        )
        self._failures_artifact.show(artifact)

    def _emit(
        self, event: str, payload: dict[str, object], labels: dict[str, str] | None = None
    ) -> None:
        # Prefect sends the event from another thread, and adds the id of the flow run.
        emit_event(
            event,
            resource=event_resource("dataset", self._dataset) | (labels or {}),
            payload={"dataset": self._dataset, "run": self._run} | payload,
        )
