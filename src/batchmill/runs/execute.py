"""Execute a prepared job: from the dataset's lease to the published tables.

A runner executes the shards, and an observer receives the stages. Those of this file need neither
Prefect nor Ray.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

from batchmill.core.ledger.lease import Wait
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.outcome import Outcome
from batchmill.core.planning.batching import Cores
from batchmill.core.planning.prepare import Prepared
from batchmill.datasets.publishing.publish import publish_changes
from batchmill.datasets.publishing.report import write_report
from batchmill.datasets.publishing.run_summary import Summary, summarise
from batchmill.runs.run import Run, open_run
from batchmill.runs.shards.run_shard import run_shard
from batchmill.runs.shards.shard import Shard


class ShardsEnd(NamedTuple):
    """How the shards of a run ended.

    Attributes:
        lost: True if a process or machine was lost.
        reasons: Why some inputs have no outcome.
        is_cancelled: True if the run was cancelled. Then nothing is published.
    """

    lost: bool = False
    reasons: Sequence[str] = ()
    is_cancelled: bool = False


class Runner(AbstractContextManager["Runner"], ABC):
    """Executes the shards of one run. The block is entered only if there are pending inputs."""

    def __exit__(self, *exception: Any) -> None:
        """End the processes that outlive their shards. By default, nothing is done."""

    @property
    @abstractmethod
    def cores(self) -> Cores:
        """The cores that the plan is made for.

        Raises:
            OptionError: No machine can run a shard.
        """

    @abstractmethod
    def run(self, run: Run, shards: Sequence[Shard], num_workers: int) -> ShardsEnd:
        """Execute shards, and return when all have ended.

        Args:
            run: The run, whose plan is written.
            shards: The shards.
            num_workers: The number of DataLoader workers of each shard.

        Raises:
            LedgerError: The run has lost the dataset's lease, or the ledger has a damaged part.
            RunError: The runner is lost.
            ServiceError: The shards cannot run.
            StoreError: The dataset cannot be read or written.
        """


class InThisProcess(Runner):
    """Executes shards one after another in this process, without Prefect and Ray.

    Args:
        cores: The number of cores that the plan is made for.
        on_outcome: Called with each outcome.
    """

    def __init__(
        self, *, cores: int = 1, on_outcome: Callable[[Outcome], None] | None = None
    ) -> None:
        self._cores = cores
        self._on_outcome = on_outcome

    @property
    def cores(self) -> Cores:
        """The given number of cores."""
        return Cores(total=self._cores, node=self._cores)

    def run(self, run: Run, shards: Sequence[Shard], num_workers: int) -> ShardsEnd:  # noqa: ARG002
        """Execute shards one after another. Raises the errors of `run_shard`."""
        for shard in shards:
            run_shard(shard, self._on_outcome)
        return ShardsEnd()


class RunObserver:
    """Receives the stages of a run, and writes its tables and its report in this process.

    An error that a method raises ends the run.

    Attributes:
        wait: Wait while another run holds the dataset, with these actions. None: do not wait.
    """

    wait: Wait | None = None

    def begin(self, run: Run) -> None:
        """The run holds the dataset, and its plan is final."""

    def planned(self, run: Run) -> None:
        """The plan is written for the shards."""

    def write_tables(self, prepared: Prepared, run: int) -> str:
        """Write metadata.parquet, metadata.csv and failures.csv, unless they are up to date.

        Returns:
            Why nothing was published: the table breaks an expectation. Usually empty.
        """
        return publish_changes(prepared, run)

    def write_report(self, ledger: Ledger, run: int, dataset: str) -> None:
        """Write report.html for a run."""
        write_report(ledger, run, dataset)

    def end(self, summary: Summary, *, is_cancelled: bool) -> None:
        """All inputs that the run could execute have an outcome, and the summary is recorded."""


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """A run that has ended.

    Attributes:
        summary: The counts of outcomes.
        reasons: Why some inputs have no outcome.
        is_cancelled: True if the run was cancelled. Then nothing was published.
    """

    summary: Summary
    reasons: tuple[str, ...] = ()
    is_cancelled: bool = False


def execute(prepared: Prepared, runner: Runner, observer: RunObserver | None = None) -> RunEnd:
    """Execute the pending inputs of a job, and publish the dataset.

    Args:
        prepared: The checked job and its plan.
        runner: Executes the shards.
        observer: Receives the stages of the run, and writes its tables and report.

    Returns:
        How the run ended. Too many failed inputs are not an error here.

    Raises:
        LedgerError: Another run holds the lease, or has taken it.
        BatchmillError: Any error of `prepare`, of the runner and of the observer.
    """
    observer = observer or RunObserver()
    with open_run(prepared, wait=observer.wait) as run:
        observer.begin(run)
        if not run.pending:
            # Later readers need a plan, also of a run that has nothing to execute.
            run.divide(Cores(total=1, node=1))
            observer.planned(run)
            return _publish(run, ShardsEnd(), observer)
        with runner:  # It ends its processes while the tables are written.
            layout, shards = run.divide(runner.cores)
            observer.planned(run)
            ended = runner.run(run, shards, layout.num_workers)
            if ended.is_cancelled:
                summary = summarise(run.ledger, run.number)
                observer.end(summary, is_cancelled=True)
                return RunEnd(summary=summary, is_cancelled=True)
            return _publish(run, ended, observer)


def _publish(run: Run, ended: ShardsEnd, observer: RunObserver) -> RunEnd:
    with run.ledger.store.keeping_listings():
        run.finalize()
        unpublished = observer.write_tables(run.prepared, run.number)
        is_stale = not unpublished and run.report_is_stale
        summary = run.end(lost=ended.lost, unpublished=unpublished)
        if is_stale:
            observer.write_report(run.ledger, run.number, run.prepared.job.output)
    observer.end(summary, is_cancelled=False)
    return RunEnd(summary=summary, reasons=tuple(ended.reasons))
