"""The interface to the place where the shards of a run execute."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any

from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture

from batchmill.planning.batching import Cores
from batchmill.runs.node_check import Probe
from batchmill.shards.shard import Shard

ShardFuture = PrefectFuture[Any]


class ShardRunner(AbstractContextManager["ShardRunner"], ABC):
    """Runs shards as Prefect task runs. The implementations are `local` and `ray`.

    Attributes:
        nodes: The ids of the machines that existed at the last call of `slots`.
        is_elastic: True if other machines may join later.
        lost_message: The message for the user after the runner is lost.
    """

    nodes: frozenset[str] = frozenset()
    is_elastic = False
    lost_message = ""

    @property
    @abstractmethod
    def cores(self) -> Cores:
        """The cores that the plan is made for.

        Raises:
            OptionError: No machine can run a shard.
        """

    @abstractmethod
    def prepare(self, num_workers: int, probe: Probe) -> None:
        """Prepare for the shards of a run whose plan has been written.

        Args:
            num_workers: The number of DataLoader workers in each shard.
            probe: The checks that another machine makes before it runs a shard.

        Raises:
            ServiceError: The shards cannot run.
        """

    @abstractmethod
    def slots(self) -> int | None:
        """Return how many shards can run at a time now. None while the number is unknown.

        Raises:
            RunError: The runner is lost.
        """

    @abstractmethod
    def submit(self, shard: Shard) -> ShardFuture:
        """Start a task run for a shard. The task run waits in the runner until a slot is free."""

    @abstractmethod
    def wait(self, futures: Sequence[ShardFuture], seconds: float) -> Collection[ShardFuture]:
        """Wait until one of the task runs has ended.

        Args:
            futures: The task runs to wait for.
            seconds: The longest time to wait.

        Returns:
            The task runs that have ended. Empty if all are still running.
        """

    @abstractmethod
    def kill(self, future: ShardFuture) -> None:
        """Kill the process of a task run. The task run ends soon after."""

    @abstractmethod
    def release(self) -> None:
        """Begin to free the resources of the shards. No shard is submitted afterwards."""

    def leave_out(self, state: State[Any]) -> bool:  # noqa: ARG002
        """Stop giving shards to a node that could not run one.

        Args:
            state: The final state of a task run.

        Returns:
            True if the node of the task run cannot run shards. The shard has not begun.
        """
        return False

    @abstractmethod
    def is_lost(self, reason: str) -> bool:
        """Return whether a crash means that the runner cannot run any shard.

        Args:
            reason: The message of the crashed task run.
        """
