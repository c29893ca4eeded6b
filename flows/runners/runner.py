"""What a run needs of the place where its shards run."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any

from prefect.futures import PrefectFuture

from batchmill.execution.shard import Shard
from batchmill.planning.batching import Cores

ShardFuture = PrefectFuture[Any]


class ShardRunner(AbstractContextManager["ShardRunner"], ABC):
    """Runs shards as Prefect task runs; `local` and `ray` are the two there are.

    `nodes` are the ids of the machines that were there when `slots` was called last; `is_elastic`
    tells whether others may come. `lost_message` is what to say when no more shards can run.
    """

    nodes: frozenset[str] = frozenset()
    is_elastic = False
    lost_message = ""

    @property
    @abstractmethod
    def cores(self) -> Cores:
        """The cores that the plan is made for. Raises OptionError if no shard can run."""

    @abstractmethod
    def prepare(self, num_workers: int) -> None:
        """Get ready for shards with so many DataLoader workers, whose plan has been written.

        Raises ServiceError if they cannot run.
        """

    @abstractmethod
    def slots(self) -> int | None:
        """Count the shards that run at a time, now; None while that cannot be known.

        Raises RunError when the runner is lost.
        """

    @abstractmethod
    def submit(self, shard: Shard) -> ShardFuture:
        """Start a task run for a shard, or have it wait until there is a slot for it."""

    @abstractmethod
    def wait(self, futures: Sequence[ShardFuture], seconds: float) -> Collection[ShardFuture]:
        """Wait until one of some task runs has ended, but no longer than so; returns the ended."""

    @abstractmethod
    def kill(self, future: ShardFuture) -> None:
        """Kill the process of a task run, which then ends soon."""

    @abstractmethod
    def release(self) -> None:
        """Begin to give back what shards needed: no more will be submitted."""

    @abstractmethod
    def is_lost(self, reason: str) -> bool:
        """Tell from the reason why a task run crashed whether no more shards can be submitted."""
