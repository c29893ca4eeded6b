"""The interface to the place where the shards of a run execute, and the runner without Ray."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import ExitStack
from typing import Any, cast

from prefect.client.schemas.objects import State
from prefect.futures import PrefectConcurrentFuture, PrefectFuture
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.utilities.annotations import opaque

from batchmill.core.planning.batching import Cores, cores_of_machine, own_cores
from batchmill.core.security.credentials import Access
from batchmill.runs.node_check import Probe
from batchmill.runs.shards.process_pool import shard_processes
from batchmill.runs.shards.shard import Shard
from batchmill.tasks.shard import RunningShards, run_local_shard

ShardFuture = PrefectFuture[Any]


class ShardRunner(ABC):
    """Runs shards as Prefect task runs. The implementations are LocalRunner and RayRunner.

    Attributes:
        nodes: The ids of the machines that existed at the last call of `slots`.
        is_elastic: True if other machines may join later.
        lost_message: The message for the user after the runner is lost.
        why_unfit: Why the last machine that was left out cannot run shards. Usually empty.
    """

    nodes: frozenset[str] = frozenset()
    is_elastic = False
    lost_message = ""
    why_unfit = ""

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

    def release(self) -> None:  # noqa: B027  # A runner need not do it.
        """Begin to free the resources of the shards. By default, they are freed at the end.

        No shard is submitted afterwards.
        """

    def leave_out(self, state: State[Any]) -> bool:  # noqa: ARG002
        """Stop giving shards to a node that could not run one.

        Args:
            state: The final state of a task run.

        Returns:
            True if the node of the task run cannot run shards. The shard has not begun.
        """
        return False

    def is_lost(self, reason: str) -> bool:  # noqa: ARG002
        """Return whether a crash means that the runner cannot run any shard.

        Args:
            reason: The message of the crashed task run.
        """
        return False


class LocalRunner(ShardRunner):
    """Runs a Prefect task in a thread for each shard. The task waits for the shard's process.

    Args:
        access: The credentials that the shards need.
        gpus: The GPUs that the shards use, by their names in CUDA_VISIBLE_DEVICES.
        held: Keeps the processes and threads of the shards until it is closed.
    """

    def __init__(self, access: Sequence[Access], gpus: Sequence[str], held: ExitStack) -> None:
        self._access = access
        self._gpus = gpus
        self._held = held
        self._running = RunningShards(held.enter_context(shard_processes()), gpus)

    @property
    def cores(self) -> Cores:
        """The cores that this process may use."""
        return cores_of_machine(own_cores(), len(self._gpus))

    def prepare(self, num_workers: int, probe: Probe) -> None:  # noqa: ARG002
        """Limit the number of shards that run at a time: each DataLoader worker gets a core.

        If shards use GPUs, each has one for itself.
        """
        self._slots = self.cores.slots_for(num_workers)
        tasks: ThreadPoolTaskRunner[Any] = ThreadPoolTaskRunner(max_workers=self._slots)
        self._tasks = self._held.enter_context(tasks)

    def slots(self) -> int:
        """Return how many shards can run at a time. The number is constant."""
        return self._slots

    def submit(self, shard: Shard) -> ShardFuture:
        """Run the shard's task in the next free thread."""
        running: Any = opaque(self._running)  # Keeps Prefect from searching it for futures.
        parameters = {"shard": shard, "access": self._access, "running": running}
        return self._tasks.submit(run_local_shard, parameters)

    def wait(self, futures: Sequence[ShardFuture], seconds: float) -> Collection[ShardFuture]:
        """Wait until the thread of one of the task runs has ended."""
        threads = {cast("PrefectConcurrentFuture[Any]", f).wrapped_future: f for f in futures}
        ended, _ = wait(threads, seconds, return_when=FIRST_COMPLETED)
        return [threads[thread] for thread in ended]

    def release(self) -> None:
        """Begin to end the processes. The call returns before they have ended."""
        self._running.processes.release()

    def kill(self, future: ShardFuture) -> None:
        """Kill the shard's process. A shard that has no process yet does not begin."""
        self._running.kill(future.task_run_id)
