"""Executes the inputs of one shard in DataLoader workers, and records their outcomes."""

import asyncio
import faulthandler
import logging
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from batchmill.core.layout import FILES
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.outcome import Outcome, UnstoredOutcome
from batchmill.core.planning.job import Confinement
from batchmill.core.planning.run_spec import as_planned
from batchmill.core.storage import is_url, obstore_s3, remote
from batchmill.core.storage.fingerprints import Fingerprint
from batchmill.core.storage.objects import ObjectStore
from batchmill.core.storage.ranges import HEAD_BYTES
from batchmill.runs.inputs.batch_runner import BatchRunner
from batchmill.runs.inputs.call_step import answer
from batchmill.runs.inputs.failed_outcomes import lost
from batchmill.runs.inputs.read_input import fetch_and_read
from batchmill.runs.inputs.run_input import StepHooks, load, run_async_step, run_step, store_all
from batchmill.runs.inputs.shared_step import SharedStep
from batchmill.runs.inputs.staging import CONFINED_FOLDERS, Input, StagingArea, discard
from batchmill.runs.shards.outcome_recorder import OutcomeRecorder, PackUpload
from batchmill.runs.shards.recorded_attempts import RecordedAttempts
from batchmill.runs.shards.shard_inputs import ShardInputs
from batchmill.runs.shards.step_log import StepLines, StepLog
from batchmill.runs.shards.torch_dataset import create_torch_dataset
from batchmill.runs.workers.async_inputs import Concurrency, Limit, RunAttempt
from batchmill.runs.workers.confined_process import ConfinedProcess
from batchmill.runs.workers.isolated_executor import IsolatedExecutor
from batchmill.runs.workers.landlock import check_support
from batchmill.runs.workers.loaded_batches import BatchCallbacks, Sample
from batchmill.runs.workers.pipeline import TransferPipeline
from batchmill.runs.workers.processes import end_children
from batchmill.runs.workers.stop_flags import Stop
from batchmill.runs.workers.watchdog import Limits
from batchmill.runs.workers.worker import this_worker
from batchmill.runs.workers.worker_exit import WorkerExit

logger = logging.getLogger(__name__)

# An async step that was cancelled may take this long to end.
_GRACE_SECONDS = 5.0
# The outcomes of a shard whose process must end are committed within this time.
_FLUSH_SECONDS = 60.0
# A larger file is read in a thread, because other inputs of the worker would wait.
_LARGE_BYTES = 2**20


class ShardExecution:
    """One attempt at a shard, with its own staging area."""

    def __init__(
        self,
        ledger: Ledger,
        inputs: ShardInputs,
        staging: StagingArea,
        on_outcome: Callable[[Outcome], None] | None,
        log: StepLog | None = None,
        on_lines: Callable[[StepLines], None] | None = None,
    ) -> None:
        self._ledger = ledger
        self._on_lines = on_lines
        self._inputs = inputs
        self._staging = staging
        self._step = inputs.step
        self._items = inputs.items(staging)
        self._sizes: Sequence[int] = inputs.table["size"].to_pylist()
        self._confined: ConfinedProcess | None = None
        if inputs.spec.confinement:
            check_support(inputs.spec.confinement.writable)
        self._look_up, self._torch_dataset = self._make_look_up()
        self._stop = Stop()
        self._is_split = False
        packs, store = staging.packs, ledger.store
        upload = PackUpload(store, packs) if packs and is_url(store.url) else None
        self._recorder = OutcomeRecorder(ledger, inputs, self._stop, on_outcome, upload, log)
        levels = logging.getLevelNamesMapping()
        self._log_level = levels[inputs.shard.log_steps.upper()] if log else 0
        self._callbacks = self._batch_callbacks()
        self._pipeline = self._make_pipeline()
        self._executor = self._make_executor()
        self._attempts = RecordedAttempts(ledger.control, inputs, self._executor.table)

    def run(self, prefix: str) -> Mapping[str, int]:
        """Execute all inputs, and commit their outcomes in parts whose names begin with `prefix`.

        Returns:
            The number of inputs by kind of outcome.
        """
        shard, spec = self._inputs.shard, self._inputs.spec
        if shard.attempt > 1:
            self._attempts.resume()
        self._attempts.record()
        with self._recorder.committing(prefix, self._apply_requests):
            self._executor.execute(
                batch_size=self._inputs.batch_size(step_is_batched=self._callbacks is not None),
                num_workers=spec.num_workers,
            )
        return dict(self._recorder.counts)

    def _apply_requests(self) -> None:
        """Apply requests from the ledger. The committer's thread calls this."""
        control = self._ledger.control
        run, key = self._inputs.spec.run, self._inputs.shard.key
        self._attempts.record()
        if control.stop_requested(run):
            self._stop.request()
        if not self._is_split and control.split_requested(run, key):
            self._is_split = True
            boundary = self._executor.shorten()
            control.record_split(run, key, self._inputs.plan_row(boundary))

    def _make_look_up(self) -> tuple[Callable[[int], Any], Any]:
        """Return the function that looks up an item by its index, and the torch Dataset or None."""
        target = self._step.target
        if self._step.kind == "items":
            positions = self._inputs.table["position"].to_pylist()
            return lambda index: target[positions[index]], target
        if self._step.kind == "dataset":
            return create_torch_dataset(self._ledger, self._inputs, self._items)
        return lambda _: None, None  # A function step has no items.

    def _make_executor(self) -> IsolatedExecutor:
        policy = self._inputs.spec.policy
        return IsolatedExecutor(
            count=len(self._inputs),
            run=self._load_one if self._callbacks else self._execute_one,
            lost=self._lost,
            deliver=self._recorder.record,
            limits=Limits(
                timeout_seconds=policy.timeout_seconds,
                memory_bytes=policy.memory_bytes,
                grace_seconds=_GRACE_SECONDS if self._step.is_async else 0.0,
            ),
            retries=policy.retries,
            retried=policy.retried,
            stop=self._stop,
            processing=self._callbacks,
            pipeline=self._pipeline,
            concurrency=self._make_concurrency(),
            warn=self._warn,
            imported=self._inputs.libraries.imported,
        )

    def _make_concurrency(self) -> Concurrency | None:
        """Return how workers run several inputs at a time; None if the step is not async."""
        spec = self._inputs.spec
        if not self._step.is_async:
            return None
        return Concurrency(
            inputs=spec.concurrency,
            open=self._open_step,
            pace_seconds=spec.pace_seconds,
            keeps_logs=bool(self._log_level),
        )

    @asynccontextmanager
    async def _open_step(self) -> AsyncIterator[RunAttempt]:
        shared = SharedStep(self._step, this_worker.setting_up, this_worker.channel.warn)
        with ThreadPoolExecutor(remote.THREADS) as threads:
            yield partial(self._attempt, shared, threads)
            await shared.close()

    async def _attempt(
        self, shared: SharedStep, threads: ThreadPoolExecutor, index: int, slot: int, limit: Limit
    ) -> Outcome:
        """Run an async step on one input in this worker."""
        item, channel = self._items[index], this_worker.channel
        in_thread = partial(asyncio.get_running_loop().run_in_executor, threads)
        is_large = self._sizes[index] > _LARGE_BYTES
        hooks = StepHooks(
            before=partial(_begin_step, self._log_level, slot),
            after=partial(channel.end_step, slot),
            in_thread=in_thread if item.fetched or is_large else None,
            opened=shared.get,
            limit=limit,
        )
        done = await run_async_step(self._step, item, self._staging, hooks)
        if isinstance(done, UnstoredOutcome):
            (done,) = await in_thread(store_all, [done])
        return done

    def _make_pipeline(self) -> TransferPipeline | None:
        """Return the pipeline for remote files; None if all are local, or the step is async."""
        store = self._staging.store
        urls = [file.url for item in self._items for file in item.fetched]
        if isinstance(store, ObjectStore):
            urls.append(store.url_of(FILES))
        if not urls:
            return None
        obstore_s3.prepare(urls)
        if self._step.is_async:
            return None  # While files are moved, other inputs run.
        items = self._items
        return TransferPipeline(
            fetch=lambda index: fetch_and_read(items[index]) if items[index].fetched else None,
            discard=lambda index: discard(items[index]),
            size=lambda index: _transfer_size(items[index]),
        )

    def _batch_callbacks(self) -> BatchCallbacks | None:
        """Return the functions that process batches; None if the step is not a batch step."""
        if not self._step.is_batched or self._torch_dataset is None:
            return None
        runner = BatchRunner(
            step=self._step,
            torch_dataset=self._torch_dataset,
            inputs=self._items,
            staging=self._staging,
        )
        return BatchCallbacks(
            collate=runner.collate,
            begin=runner.begin,
            store=store_all,
            overdue=self._end_overdue,
            end=self._end_process,
            pins_memory=runner.pins_memory,
        )

    def _warn(self, text: str) -> None:
        """Show a warning about a worker with the run."""
        logger.warning("%s: %s", self._inputs.shard.title, text)
        if self._on_lines:
            self._on_lines(StepLines("", tuple(f"WARNING: {line}" for line in text.splitlines())))

    def _fetched(self, index: int) -> Fingerprint | None:
        """Return the fingerprint of an input that was fetched ahead; None if it was not."""
        return self._pipeline.fetched(index) if self._pipeline else None

    def _execute_one(self, index: int) -> Outcome | UnstoredOutcome:
        confinement = self._inputs.spec.confinement
        if confinement and not self._confined:  # This is the first input of this worker.
            self._confined = self._start_confined(confinement)
        begin = partial(_begin_step, self._log_level)
        hooks = StepHooks(begin, _end_step, partial(self._fetched, index))
        if self._confined:
            # The confined process lives on, and ends its own children.
            end, run = this_worker.channel.end_step, partial(self._confined, index)
            hooks = hooks._replace(after=end, confined=run)
        item, look_up = self._items[index], partial(self._look_up, index)
        done = run_step(self._step, item, self._staging, look_up, hooks)
        return _with_log(done) if self._log_level else done

    def _start_confined(self, confinement: Confinement) -> ConfinedProcess:
        """Return the confined process of this worker, and give the worker a folder of its own."""
        name = CONFINED_FOLDERS.replace("*", str(os.getpid()))
        folder = self._staging.folder / name
        folder.mkdir()
        self._staging = replace(self._staging, folder=folder)
        return ConfinedProcess(
            run=self._answer,
            folder=folder,
            temporary=Path(self._staging.temporary or folder, name),
            writable=confinement.writable,
            network=confinement.network,
        )

    def _answer(self, index: int) -> bytes:
        """Run the step on one input in the confined process of this worker."""
        return answer(self._step, self._items[index], self._staging, partial(self._look_up, index))

    def _load_one(self, index: int) -> Outcome | Sample:
        look_up = partial(self._look_up, index)
        hooks = StepHooks(_begin_step, _end_step, partial(self._fetched, index))
        loaded = load(self._step, self._items[index], self._staging, look_up, hooks)
        return loaded if isinstance(loaded, Outcome) else Sample(index, *loaded)

    def _lost(self, index: int, worker_exit: WorkerExit) -> Outcome:
        """Return the outcome of an input whose process died, with its planned fingerprint."""
        outcome = lost(self._items[index], self._staging, worker_exit)
        return as_planned(outcome, self._inputs.table, index)

    def _end_overdue(self, indices: Sequence[int]) -> None:
        """End this process because its batch exceeds the timeout.

        If the batch has only one input, that input gets the outcome `timeout`, or is retried.
        """
        seconds = self._inputs.spec.policy.timeout_seconds or 0.0
        message = f"the batch was still running after {seconds:g} s (--timeout)"
        try:
            faulthandler.dump_traceback(all_threads=True)
            if len(indices) == 1:
                outcome = self._lost(
                    indices[0], WorkerExit("timeout", "Timeout", message, seconds=seconds)
                )
                final = self._executor.table.ended(indices[0], outcome, time.monotonic())
                self._recorder.record([final] if final else [])
        finally:
            # The attempt at a single input is counted already.
            self._end_process(f"{len(indices)} inputs: {message}", may_die=len(indices) > 1)

    def _flush(self, may_die: bool) -> None:
        self._recorder.flush()
        self._attempts.record(may_die=may_die)

    def _end_process(self, reason: str, *, may_die: bool = True) -> None:
        """Commit all outcomes and kill this process. The driver retries the other inputs.

        A store that hangs does not keep the process. `may_die` is as in `RecordedAttempts.record`.
        """
        logger.error("%s: %s", self._inputs.shard.title, reason)
        flushing = threading.Thread(target=self._flush, args=(may_die,), daemon=True)
        flushing.start()
        flushing.join(_FLUSH_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)


def _transfer_size(item: Input) -> int:
    """Return the size of an input's remote files in bytes; -1 if the size of one is unknown."""
    sizes = [file.planned.size for file in item.fetched if file.planned]
    if item.in_parts:  # The item itself is the last of the files.
        sizes[-1] = min(sizes[-1], HEAD_BYTES)
    return sum(sizes) if all(size >= 0 for size in sizes) else -1


# In a worker: `--timeout` limits only the time between `_begin_step` and `_end_step`.
def _begin_step(level: int = 0, slot: int = 0) -> None:
    """Let the step log from this level, if any. The worker's own code logs as before."""
    if level:
        logging.getLogger().setLevel(level)
    this_worker.channel.begin_step(slot)


def _with_log(done: Outcome | UnstoredOutcome) -> Outcome | UnstoredOutcome:
    """Return an outcome with the text that the step printed and logged in this worker."""
    streams = this_worker.streams
    if streams.are_unused() or not streams.has_log():  # The first call flushes the streams.
        return done
    text = this_worker.channel.log_tail()
    if isinstance(done, Outcome):
        return done._replace(log=text)
    finish = done.finish
    return done._replace(finish=lambda error: finish(error)._replace(log=text))


def _end_step() -> None:
    # Processes that the step left behind could still write to its files.
    end_children()
    this_worker.channel.end_step()
