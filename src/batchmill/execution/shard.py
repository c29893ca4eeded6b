"""A shard as the driver sees it: what it is to do, what is left of it, what it is asked."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.ledger.ledger import Ledger, Origin
from batchmill.outcome import Outcome
from batchmill.planning.plan import carried_text
from batchmill.planning.run_spec import as_planned, carried_rows, read_inputs, read_work
from batchmill.storage import open_store


@dataclass(frozen=True, kw_only=True)
class Shard:
    """The rows `start` up to `stop` of a run's plan; the `number`-th of `total`.

    In an `attempt` after the first, those that have an outcome are passed over; `left` are the
    others. One that is `split_off` has what another had not begun; that one was `given` the rows up
    to this one at first.
    """

    dataset: str
    run: int
    number: int
    total: int
    start: int
    stop: int
    attempt: int = 1
    left: int = -1
    split_off: bool = False
    given: int = -1

    @property
    def key(self) -> str:
        """What no other shard of the run is called, nor another attempt at it."""
        return f"{self.start}-{self.stop if self.given < 0 else self.given}-{self.attempt}"

    @property
    def inputs(self) -> int:
        """The number of inputs to execute."""
        return self.stop - self.start if self.left < 0 else self.left

    @property
    def title(self) -> str:
        """Its name, for people."""
        again = f", attempt {self.attempt}" if self.attempt > 1 else ""
        part = ", split off" if self.split_off else ""
        return f"shard {self.number}/{self.total}, {self.inputs} inputs{part}{again}"


def unfinished(shards: Sequence[Shard]) -> list[list[int]]:
    """Return the rows of a run's plan that each shard was given and that have no outcome yet."""
    ledger = Ledger(open_store(shards[0].dataset))
    recorded = recorded_in(ledger, shards[0].run)
    rows = []
    for shard in shards:
        table = read_inputs(ledger, shard.run, shard.start, shard.stop)
        left = is_left(table, recorded).to_pylist()
        rows.append(list(compress(range(shard.start, shard.stop), left)))
    return rows


def place_of(shard: Shard) -> str | None:
    """Return the node on which a shard has begun; None if it has not."""
    return Ledger(open_store(shard.dataset)).place_of(shard.run, shard.key)


def ask_to_split(shard: Shard) -> None:
    """Ask a shard that is at work to leave what it has not begun; `split` tells when it has."""
    Ledger(open_store(shard.dataset)).ask_to_split(shard.run, shard.key)


def split(shard: Shard) -> tuple[Shard, Shard | None] | None:
    """Return what a shard keeps and what it has left; None as long as it has not said.

    Of one that had begun everything, nothing is left.
    """
    row = Ledger(open_store(shard.dataset)).split_answer(shard.run, shard.key)
    if row is None:
        return None
    if row >= shard.stop:
        return shard, None
    rest = replace(shard, start=row, left=-1, split_off=True)
    return replace(shard, stop=row, given=shard.stop, left=-1), rest


def give_up(shard: Shard, reason: str) -> str | None:
    """Record that the one input of a shard ends the shard's process; returns its name.

    `reason` says how the process ended the last time.

    None if it has not been executed alone, to no outcome, more often than the run's retries allow:
    a process that was lost before it came to the input proves nothing. Only the dataset's holder
    may call this.
    """
    ledger = Ledger(open_store(shard.dataset))
    work = read_work(ledger, shard.run)
    row = shard.start
    if ledger.count_alone(shard.run, row) <= work.policy.retries:
        return None
    table = read_inputs(ledger, shard.run, row, row + 1)
    (name,), (identifier,) = table["input"].to_pylist(), table["input_id"].to_pylist()
    outcome = Outcome(
        input=name,
        input_id=identifier,
        kind="crashed",
        attempts=shard.attempt,
        seconds=0.0,
        finished_at=time.time(),
        host="",
        error="ShardProcessDied",
        message=f"alone in its shard, it ended the process of the shard each time: {reason}",
    )
    outcome = as_planned(outcome, table, 0)
    origin = Origin(carried_text(carried_rows(table)[0]), work.identity, work.run)
    ledger.commit(f"{shard.run:06d}-{uuid.uuid4().hex[:12]}-00000", [(outcome, origin)])
    return str(name)


def recorded_in(ledger: Ledger, run: int) -> pa.Array:
    """Return the names of the inputs that have an outcome in a run."""
    return ledger.records(["input"], run=run)["input"].combine_chunks()


def is_left(table: pa.Table, recorded: pa.Array) -> pa.Array:
    """Tell of each row of a plan whether it has no outcome among those `recorded`."""
    return pc.invert(pc.is_in(table["input"].combine_chunks(), value_set=recorded))
