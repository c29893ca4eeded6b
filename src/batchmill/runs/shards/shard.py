"""Describes a shard, and lets the driver split it or fail its last input."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.parts import Origin
from batchmill.core.outcome import Outcome
from batchmill.core.planning.decisions import encode_manifest_columns
from batchmill.core.planning.plan_file import PlanFile
from batchmill.core.planning.run_spec import as_planned, carried_rows, read_spec
from batchmill.core.storage import open_store
from batchmill.runs.workers.inputs_in_progress import History


@dataclass(frozen=True, kw_only=True)
class Shard:
    """The rows from `start` up to `stop` of a run's plan. It is shard `number` of `total`.

    An `attempt` after the first skips inputs that have an outcome. `losses` counts the attempts
    that lost their process, so not those that never began. `left` counts the inputs without an
    outcome; -1 if the number is unknown. A shard that is `split_off` has the inputs that another
    shard had not begun. If this shard was split, `given` is its original `stop`; otherwise -1. With
    the `pickle_digest`, a process may read the run's pickled step. It is empty if the step is
    imported. With `log_steps`, the log of the step goes to Prefect from this level.
    """

    dataset: str
    run: int
    number: int
    total: int
    start: int
    stop: int
    attempt: int = 1
    losses: int = 0
    left: int = -1
    split_off: bool = False
    given: int = -1
    pickle_digest: str = ""
    log_steps: str = ""

    @property
    def key(self) -> str:
        """A name that is unique for each shard of the run and each attempt at it."""
        return f"{self.start}-{self.stop if self.given < 0 else self.given}-{self.attempt}"

    @property
    def inputs(self) -> int:
        """The number of inputs to execute."""
        return self.stop - self.start if self.left < 0 else self.left

    @property
    def title(self) -> str:
        """The shard's name in messages."""
        again = f", attempt {self.attempt}" if self.attempt > 1 else ""
        part = ", split off" if self.split_off else ""
        return f"shard {self.number}/{self.total}, {self.inputs} inputs{part}{again}"


def unfinished(shards: Sequence[Shard]) -> list[list[int]]:
    """Return the plan's row numbers without an outcome yet, as one list per shard."""
    ledger = Ledger(open_store(shards[0].dataset))
    recorded = recorded_in(ledger, shards[0].run)
    plan = PlanFile(ledger, shards[0].run)
    return [left_in(plan.rows(shard.start, shard.stop), shard, recorded)[1] for shard in shards]


def place_of(shard: Shard) -> str | None:
    """Return the node on which a shard runs or ran; None if the shard has not begun."""
    return Ledger(open_store(shard.dataset)).control.read_node(shard.run, shard.key)


def ask_to_split(shard: Shard) -> None:
    """Request that a running shard leaves out the inputs that it has not begun.

    `split` returns the result.
    """
    Ledger(open_store(shard.dataset)).control.request_split(shard.run, shard.key)


def split(shard: Shard) -> tuple[Shard, Shard | None] | None:
    """Return the result of `ask_to_split`.

    Returns:
        Two shards: one with the inputs that the shard keeps, and one with the inputs that it left
        out. If the shard had begun all inputs, the second item equals None. If the shard has not
        replied yet, the whole result equals None.
    """
    row = Ledger(open_store(shard.dataset)).control.read_split(shard.run, shard.key)
    if row is None:
        return None
    if row >= shard.stop:
        return shard, None
    rest = replace(shard, start=row, left=-1, split_off=True)
    return replace(shard, stop=row, given=shard.stop, left=-1), rest


def give_up(shard: Shard, reason: str) -> str | None:
    """Record the outcome `crashed` for the only input of a shard, if its retries are used up.

    An attempt counts only if the input was executed alone and got no outcome. A process that died
    before it began the input does not count, nor does one that was lost with its node. Only the
    holder of the dataset's lease may call this.

    Args:
        shard: A shard of one input. Its process died.
        reason: How the process ended in the last attempt.

    Returns:
        The input's name; None if the input may be retried.
    """
    ledger = Ledger(open_store(shard.dataset))
    spec = read_spec(ledger, shard.run)
    row = shard.start
    seen = History(*ledger.control.read_attempts(shard.run).get(row, ()))
    if seen.faults <= spec.policy.retries:
        return None
    table = PlanFile(ledger, shard.run).rows(row, row + 1)
    (name,), (identifier,) = table["input"].to_pylist(), table["input_id"].to_pylist()
    outcome = Outcome(
        input=name,
        input_id=identifier,
        kind="crashed",
        attempts=seen.attempts,
        seconds=0.0,
        finished_at=time.time(),
        host="",
        error="ShardProcessDied",
        message=f"the shard's process died each time it ran this input alone: {reason}",
    )
    outcome = as_planned(outcome, table, 0)
    carried = encode_manifest_columns(carried_rows(table)[0])
    origin = Origin(carried, spec.identity, spec.run, shard.attempt)
    ledger.commit(f"{shard.run:06d}-{uuid.uuid4().hex[:12]}-00000", [(outcome, origin)])
    return str(name)


def recorded_in(ledger: Ledger, run: int) -> pa.Array:
    """Return the names of the inputs that have an outcome in a run."""
    return ledger.outcomes(run).names.combine_chunks()


def left_in(table: pa.Table, shard: Shard, recorded: pa.Array) -> tuple[pa.Table, list[int]]:
    """Return the rows of a shard whose input is missing in `recorded`, and their row numbers."""
    left = pc.invert(pc.is_in(table["input"].combine_chunks(), value_set=recorded))
    numbers = compress(range(shard.start, shard.stop), left.to_pylist())
    return table.filter(left), list(numbers)
