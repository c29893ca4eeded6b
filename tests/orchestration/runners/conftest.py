"""A runner whose task runs are ended by the test, and the shard of a planned run."""

from dataclasses import dataclass, field
from uuid import UUID, uuid4

import pytest
from harness.jobs import job_of
from prefect.logging import disable_run_logger
from prefect.states import Running

from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.parts import Origin
from batchmill.core.outcome import Outcome
from batchmill.core.planning.batching import Cores
from batchmill.core.planning.plan_file import PlanFile
from batchmill.core.planning.prepare import prepare
from batchmill.core.storage import open_store
from batchmill.orchestration.runners.shard_runner import ShardRunner
from batchmill.runs.run import open_run
from batchmill.runs.shards.shard import Shard


@dataclass
class Future:
    """A future whose state the test sets."""

    task_run_id: UUID = field(default_factory=uuid4)
    state: object = field(default_factory=Running)

    def wait(self):
        """Return at once: the state is always current."""


class ManualRunner(ShardRunner):
    """Calls `execute` with each submitted shard. The task run ends if it returns a state."""

    lost_message = "the runner is lost"

    def __init__(self, execute=lambda shard: None, count=1):
        self.execute = execute
        self.count = count
        self.submitted = []
        self.killed = []

    @property
    def cores(self):
        return Cores(total=1, node=1)

    def prepare(self, num_workers):
        pass

    def slots(self):
        return self.count

    def submit(self, shard):
        future = Future()
        self.submitted.append(shard)
        future.state = self.execute(shard) or future.state
        return future

    def wait(self, futures, seconds):
        return [future for future in futures if future.state.is_final()]

    def kill(self, future):
        self.killed.append(future)

    def leave_out(self, state):
        return state.name == "UnfitNode"

    def is_lost(self, reason):
        return reason == "lost"


@pytest.fixture(autouse=True)
def _without_a_flow_run():
    with disable_run_logger():
        yield


@pytest.fixture
def make_runner():
    return ManualRunner


@pytest.fixture
def make_future():
    return Future


@pytest.fixture
def planned(tmp_path):
    """One shard with twenty inputs, whose plan is in the ledger."""
    (tmp_path / "in").mkdir()
    for number in range(20):
        (tmp_path / "in" / f"{number:02d}.txt").write_text("x")
    options = {"batch_size": 1, "num_workers": 1, "retries": 1}
    job = job_of(tmp_path / "in", "batchmill.steps.text:chunk", tmp_path / "out", **options)
    with open_run(prepare(job)) as run:
        _, (shard,) = run.divide(Cores(total=1, node=1))
        yield shard


@pytest.fixture
def commit():
    """Returns a function that records an outcome for rows of a run's plan."""

    def commit(shard: Shard, start: int, stop: int) -> None:
        ledger = Ledger(open_store(shard.dataset))
        table = PlanFile(ledger, shard.run).rows(start, stop)
        records = [
            (Outcome(name, name, "ok", 1, 0.1, 1.0, "host"), Origin("{}", "step", shard.run))
            for name in table["input"].to_pylist()
        ]
        ledger.commit(f"{shard.run:06d}-{uuid4().hex}-00000", records)

    return commit
