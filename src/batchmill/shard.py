"""Run one shard: its inputs through a DataLoader, their outcomes into the ledger."""

import faulthandler
import logging
import os
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.batching import weigh
from batchmill.committer import Committer
from batchmill.errors import LedgerError, StepError, StoreError
from batchmill.execute import Input, Workbench, execute, load, lost, make_dataset, open_bench
from batchmill.lease import is_held
from batchmill.ledger import Ledger, Origin
from batchmill.outcome import Outcome
from batchmill.plan import carried_text
from batchmill.plan_file import Work, carried_rows, read_inputs, read_work
from batchmill.rows import RESERVED_KEYS, RESERVED_WITH_PARTITIONS
from batchmill.step import Step, load_step
from batchmill.storage import NO_ROOM, is_url, open_store
from batchmill.storage.remote import Seen
from batchmill.storage.urls import join, last_part

logger = logging.getLogger(__name__)


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


class ShardResult(NamedTuple):
    """How many inputs of a shard had which outcome, and how long it took in seconds."""

    outcomes: Mapping[str, int]
    seconds: float


def run_shard(
    shard: Shard, on_outcome: Callable[[Outcome], None] | None = None, *, place: str = ""
) -> ShardResult:
    """Execute the inputs of a shard and commit their outcomes; calls `on_outcome` with each.

    `place` is the node that `place_of` then tells.

    Raises StepError if the step cannot be loaded here, LedgerError and StoreError if the dataset
    cannot be read or written. What was committed before stays. Ends early, with inputs that have no
    outcome, when the run was asked to stop, or should by its own policy.
    """
    # torch takes a second to import; only the processes that run shards need it.
    from batchmill.batch_step import BatchRunner
    from batchmill.isolation import IsolatedRun, Limits, Processing, RetryPolicy, Sample, Stop

    begun = time.perf_counter()
    ledger = Ledger(open_store(shard.dataset))
    if place:
        ledger.note_place(shard.run, shard.key, place)
    work = read_work(ledger, shard.run)
    step = load_step(work.step, work.params, search=work.search)
    table = read_inputs(ledger, shard.run, shard.start, shard.stop)
    numbers: Sequence[int] = range(shard.start, shard.stop)
    if shard.attempt > 1:
        left = pc.invert(_is_in(table, _recorded(ledger, shard.run)))
        table = table.filter(left)
        numbers = list(compress(numbers, left.to_pylist()))
    rows = carried_rows(table)
    origins = {
        name: Origin(carried_text(row), work.identity, work.run)
        for name, row in zip(table["input"].to_pylist(), rows, strict=True)
    }
    reserved = RESERVED_WITH_PARTITIONS if work.partitioning else RESERVED_KEYS
    counts: Counter[str] = Counter()
    stop = Stop()
    enough = work.enough_failures

    def deliver(outcomes: Sequence[Outcome]) -> None:
        if any(outcome.kind != "ok" for outcome in outcomes):
            # Whoever fails now may do so for want of room, or because the next run has swept up
            # what this one has begun: that is no outcome.
            if ledger.store.is_full:
                raise StoreError(ledger.store.url, NO_ROOM)
            if work.token and not is_held(ledger, work.token):
                raise LedgerError(f"{ledger.store.url}: run {work.run} holds it no more.")
        cancelled = [outcome for outcome in outcomes if outcome.kind == "cancelled"]
        outcomes = [outcome for outcome in outcomes if outcome.kind != "cancelled"]
        counts.update(outcome.kind for outcome in outcomes)
        committer.add(outcomes)
        if enough is not None and counts.total() - counts["ok"] > enough and not stop.requested:
            stop.request()
            ledger.request_stop(work.run)
        if on_outcome:
            for outcome in outcomes:
                on_outcome(outcome)
        if cancelled:
            raise StoreError(f"at {cancelled[0].input}", cancelled[0].message)

    is_split = False

    def look() -> None:
        nonlocal is_split
        if ledger.stop_requested(work.run):
            stop.request()
        if not is_split and ledger.split_asked(work.run, shard.key):
            is_split = True
            boundary = isolated.shorten()
            row = numbers[boundary] if boundary < len(numbers) else shard.stop
            ledger.answer_split(work.run, shard.key, row)

    def end_process(why: str) -> None:
        """End this process, with what it has done committed; the driver finds out the rest."""
        try:
            logger.error("%s: %s", shard.title, why)
            committer.flush()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)

    def end_overdue(indices: Sequence[int]) -> None:
        """End this process, whose batch takes too long; of one input, that is its outcome."""
        seconds = work.policy.timeout_seconds or 0.0
        message = f"its batch was still at work after {seconds:g} s (--timeout)"
        try:
            faulthandler.dump_traceback(all_threads=True)
            if len(indices) == 1:
                index = indices[0]
                outcome = lost(
                    inputs[index],
                    bench,
                    kind="timeout",
                    error="Timeout",
                    message=message,
                    log="",
                    seconds=seconds,
                )
                deliver([_as_planned(outcome, table, index)])
        finally:
            end_process(f"{len(indices)} inputs: {message}")

    attempt = uuid.uuid4().hex[:12]
    prefix = f"{work.run:06d}-{attempt}"
    fetches = is_url(work.root) or any("://" in name and is_url(name) for name in origins)
    with open_bench(ledger.store, attempt, fetches=fetches, reserved=reserved) as bench:
        inputs = [
            _input(bench, work.root, *values)
            for values in zip(
                origins, table["input_id"].to_pylist(), rows, _planned(table), strict=True
            )
        ]
        look_up, made = _look_up(step, table, inputs)
        processing = None
        if step.is_batched and made is not None:
            runner = BatchRunner(step=step, made=made, inputs=inputs, bench=bench)
            processing = Processing(
                collate=runner.collate,
                process=runner.process,
                overdue=end_overdue,
                end=end_process,
            )

        def run_one(index: int) -> Outcome | Sample:
            if processing is None:
                return execute(step, inputs[index], bench, partial(look_up, index))
            loaded = load(inputs[index], bench, partial(look_up, index))
            return loaded if isinstance(loaded, Outcome) else Sample(*loaded)

        isolated = IsolatedRun(
            count=len(table),
            run=run_one,
            lost=lambda index, death: _as_planned(
                lost(
                    inputs[index],
                    bench,
                    kind=death.kind,
                    error=death.error,
                    message=death.message,
                    log=death.log,
                    seconds=death.seconds,
                ),
                table,
                index,
            ),
            deliver=deliver,
            limits=Limits(
                timeout_seconds=work.policy.timeout_seconds, memory_bytes=work.policy.memory_bytes
            ),
            retry=RetryPolicy(retries=work.policy.retries),
            stop=stop,
            processing=processing,
            weights=weigh(table["size"].to_numpy()),
        )
        if shard.left == 1:
            ledger.note_alone(shard.run, shard.start, shard.attempt)
        with Committer(ledger, prefix, origins, look) as committer:
            isolated.execute(
                batch_size=_batch_size(shard, work, len(table), alone=processing is not None),
                num_workers=work.num_workers,
            )
    return ShardResult(dict(counts), time.perf_counter() - begun)


def unfinished(shards: Sequence[Shard]) -> list[list[int]]:
    """Return the rows of a run's plan that each shard was given and that have no outcome yet."""
    ledger = Ledger(open_store(shards[0].dataset))
    recorded = _recorded(ledger, shards[0].run)
    rows = []
    for shard in shards:
        table = read_inputs(ledger, shard.run, shard.start, shard.stop)
        done = _is_in(table, recorded).to_pylist()
        rows.append([shard.start + i for i, is_done in enumerate(done) if not is_done])
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


def give_up(shard: Shard) -> str | None:
    """Record that the one input of a shard takes its Ray worker with it; returns its name.

    None if it has not been executed alone, to no outcome, more often than the run's retries allow:
    a worker that was lost before it came to the input says nothing. Only for the dataset's holder.
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
        error="WorkerCrashedError",
        message="alone in a Ray worker, it took that with it each time",
    )
    outcome = _as_planned(outcome, table, 0)
    origin = Origin(carried_text(carried_rows(table)[0]), work.identity, work.run)
    ledger.commit(f"{shard.run:06d}-{uuid.uuid4().hex[:12]}-00000", [(outcome, origin)])
    return str(name)


def _recorded(ledger: Ledger, run: int) -> pa.Array:
    """Return the names of the inputs that have an outcome in a run."""
    return ledger.records(["input"], run=run)["input"].combine_chunks()


def _is_in(table: pa.Table, names: pa.Array) -> pa.Array:
    return pc.is_in(table["input"].combine_chunks(), value_set=names)


def _planned(table: pa.Table) -> Iterator[Seen]:
    """Yield what each input's store said of it when the run was planned."""
    return map(Seen, *(table[name].to_pylist() for name in Seen._fields))


def _as_planned(outcome: Outcome, table: pa.Table, row: int) -> Outcome:
    """Return an outcome with what the input was when the run was planned; nothing else is known."""
    (seen,) = _planned(table.slice(row, 1))
    return outcome._replace(**seen._asdict())


def _input(
    bench: Workbench, root: str, name: str, identifier: str, row: Mapping[str, Any], planned: Seen
) -> Input:
    if bench.fetched is None:  # All are files of this machine.
        return Input(name, identifier, os.path.join(root, name), row)
    place = join(root, name)
    if not is_url(place):
        return Input(name, identifier, place, row)
    path = f"{bench.fetched}/{identifier}/{last_part(place)}"
    return Input(name, identifier, path, row, place, planned)


def _look_up(step: Step, table: pa.Table, inputs: list[Input]) -> tuple[Callable[[int], Any], Any]:
    """Return what looks up item i of this shard in the step's Dataset, and that, if any."""
    if step.kind == "items":
        positions = table["position"].to_pylist()
        return lambda index: step.target[positions[index]], step.target
    if step.kind == "dataset":
        try:
            made = make_dataset(step, inputs)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            if step.is_batched and isinstance(error, StepError):
                raise  # As a model that is not there: no input's fault.
            return partial(_raise, error), None  # Then each input fails.
        return lambda index: made[index], made
    return lambda _: None, None


def _batch_size(shard: Shard, work: Work, inputs: int, *, alone: bool) -> int:
    """Return the batch size; 1 where one of a few inputs takes the shard's process with it.

    Where a batch step runs, that is most likely one that the model did not survive; alone, it is
    known by name.
    """
    if alone and shard.attempt > 1 and inputs <= 2 * work.batch_size:
        return 1
    return work.batch_size


def _raise(error: BaseException, _: int) -> Any:
    raise error
