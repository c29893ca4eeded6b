"""Run one shard: its inputs through a DataLoader, their outcomes into the ledger."""

import faulthandler
import logging
import os
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import compress
from typing import Any, NamedTuple

import pyarrow as pa

from batchmill.errors import LedgerError, StepError, StoreError
from batchmill.execution.failures import lost
from batchmill.execution.rows import RESERVED_KEYS, RESERVED_WITH_PARTITIONS
from batchmill.execution.run_input import execute, load, make_dataset
from batchmill.execution.shard import Shard, is_left, recorded_in
from batchmill.execution.staging import Input, StagingArea, open_staging
from batchmill.ledger.committer import Committer
from batchmill.ledger.lease import is_held
from batchmill.ledger.ledger import Ledger, Origin
from batchmill.outcome import Outcome
from batchmill.planning.batching import input_weights
from batchmill.planning.plan import carried_text
from batchmill.planning.run_spec import (
    RunSpec,
    as_planned,
    carried_rows,
    looks_of,
    read_inputs,
    read_work,
)
from batchmill.step.load import Step, load_step
from batchmill.storage import NO_ROOM, is_url, open_store
from batchmill.storage.remote import FileStat
from batchmill.storage.urls import join, last_part

logger = logging.getLogger(__name__)


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
    cannot be read or written, StoreError if there is no place for temporary files. What was
    committed before stays. Ends early, with inputs that have no outcome, when the run was asked to
    stop, or should by its own policy.
    """
    # torch takes a second to import; only the processes that run shards need it.
    from batchmill.execution.batch_runner import BatchRunner
    from batchmill.execution.isolation import (
        BatchCallbacks,
        IsolatedExecutor,
        Limits,
        RetryPolicy,
        Sample,
        Stop,
    )

    begun = time.perf_counter()
    ledger = Ledger(open_store(shard.dataset))
    if place:
        ledger.note_place(shard.run, shard.key, place)
    work = read_work(ledger, shard.run)
    step = load_step(work.step, work.params, search=work.search)
    table = read_inputs(ledger, shard.run, shard.start, shard.stop)
    numbers: Sequence[int] = range(shard.start, shard.stop)
    if shard.attempt > 1:
        left = is_left(table, recorded_in(ledger, shard.run))
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
                deliver([as_planned(outcome, table, index)])
        finally:
            end_process(f"{len(indices)} inputs: {message}")

    attempt = uuid.uuid4().hex[:12]
    prefix = f"{work.run:06d}-{attempt}"
    fetches = is_url(work.root) or any("://" in name and is_url(name) for name in origins)
    with open_staging(ledger.store, attempt, fetches=fetches, reserved=reserved) as bench:
        inputs = [
            _input(bench, work.root, *values)
            for values in zip(
                origins, table["input_id"].to_pylist(), rows, looks_of(table), strict=True
            )
        ]
        look_up, made = _look_up(step, table, inputs)
        processing = None
        if step.is_batched and made is not None:
            runner = BatchRunner(step=step, made=made, inputs=inputs, bench=bench)
            processing = BatchCallbacks(
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

        isolated = IsolatedExecutor(
            count=len(table),
            run=run_one,
            lost=lambda index, death: as_planned(
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
            weights=input_weights(table["size"].to_numpy()),
        )
        if shard.left == 1:
            ledger.note_alone(shard.run, shard.start, shard.attempt)
        with Committer(ledger, prefix, origins, look) as committer:
            isolated.execute(
                batch_size=_batch_size(shard, work, len(table), alone=processing is not None),
                num_workers=work.num_workers,
            )
    return ShardResult(dict(counts), time.perf_counter() - begun)


def _input(
    bench: StagingArea,
    root: str,
    name: str,
    identifier: str,
    row: Mapping[str, Any],
    planned: FileStat,
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


def _batch_size(shard: Shard, work: RunSpec, inputs: int, *, alone: bool) -> int:
    """Return the batch size; 1 where one of a few inputs takes the shard's process with it.

    Where a batch step runs, that is most likely one that the model did not survive; alone, it is
    known by name.
    """
    if alone and shard.attempt > 1 and inputs <= 2 * work.batch_size:
        return 1
    return work.batch_size


def _raise(error: BaseException, _: int) -> Any:
    raise error
