"""The state of the shards of one run: waiting shards, running shards, and ended task runs."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from prefect.client.schemas.objects import State

from batchmill.orchestration.runners.runner import ShardFuture
from batchmill.orchestration.server.api import TaskRunEnd
from batchmill.shards.shard import Shard


class SubmittedShard(NamedTuple):
    """A shard and the future of the task run that executes it."""

    shard: Shard
    future: ShardFuture


@dataclass(kw_only=True)
class ShardQueue:
    """The state that scheduling, the loss policy and rebalancing share.

    Attributes:
        waiting: Shards that have not been submitted. The last one is submitted next.
        running: Submitted shards by the id of their task run.
        ends: How each task run ended. The first entry ended first.
        ended_early: Why some inputs of the run have no outcome.
    """

    waiting: list[Shard] = field(default_factory=list)
    running: dict[UUID, SubmittedShard] = field(default_factory=dict)
    ends: list[TaskRunEnd] = field(default_factory=list)
    ended_early: list[str] = field(default_factory=list)

    @property
    def futures(self) -> list[ShardFuture]:
        """The futures of the running task runs."""
        return [submitted.future for submitted in self.running.values()]

    def record_end(self, submitted: SubmittedShard, state: State[Any]) -> None:
        """Record how a task run ended.

        Args:
            submitted: The shard and the future of its task run.
            state: The final state. Only its type, name and message are kept.
        """
        plain: State[Any] = State(type=state.type, name=state.name, message=state.message)
        self.ends.append(TaskRunEnd(submitted.future.task_run_id, submitted.shard.title, plain))
