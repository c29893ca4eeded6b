"""The interface to what executes the shards of a run, and the runner in this process."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from batchmill.core.outcome import Outcome
from batchmill.core.planning.batching import Cores
from batchmill.runs.run import Run
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
