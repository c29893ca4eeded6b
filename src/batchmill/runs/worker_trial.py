"""Chooses the number of DataLoader workers by executing a few inputs. Discards their outputs."""

import resource
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from batchmill.options.failure_policy import FailurePolicy
from batchmill.options.groups import ExecutionOptions
from batchmill.outcome import Outcome
from batchmill.planning.batching import MAX_AUTO_ASYNC_WORKERS, MAX_AUTO_WORKERS
from batchmill.planning.prepare import Prepared
from batchmill.runs.discarded_job import discarded_job, execute_discarded
from batchmill.runs.run import Run
from batchmill.runs.runner import InThisProcess, ShardsEnd
from batchmill.security.allowlist import restrictions
from batchmill.shards.shard import Shard
from batchmill.storage.scratch import scratch_folder

# The trial runs at most this number of inputs, and begins none after `_SECONDS`. Each input may
# take at most `_LONGEST_SECONDS`.
_INPUTS, _SECONDS, _LONGEST_SECONDS = 64, 3.0, 20.0
# The CPU time that a worker takes to start and to end.
_WORKER_SECONDS = 0.1
# In a shorter trial, the CPU time is mostly the time of the worker's start.
_LEAST_SECONDS = 0.2
# More workers per core would only wait for each other, and each worker takes memory.
_MOST_PER_CORE, _MOST = 8, 32
# A step that uses a core for this share of its time leaves no time for another worker.
_BUSY = 0.7


class Workers(NamedTuple):
    """A number of DataLoader workers for each shard, and the reason."""

    number: int
    reason: str


def resolve_workers(
    execution: ExecutionOptions,
    prepared: Prepared,
    cores: int,
    on_trial: Callable[[], None] = lambda: None,
) -> tuple[ExecutionOptions, str]:
    """Replace "auto" by a number of workers. Also return the reason; "" without a measurement.

    Calls `on_trial` before it executes a few inputs. Without pending inputs, it measures nothing.
    """
    if execution.num_workers != "auto":
        return execution, ""
    if not len(prepared.plan.pending):
        return execution.model_copy(update={"num_workers": None}), ""
    on_trial()
    workers = measure_workers(prepared, cores)
    return execution.model_copy(update={"num_workers": workers.number}), workers.reason


def measure_workers(prepared: Prepared, cores: int) -> Workers:
    """Execute a few pending inputs in one worker, and choose the number of workers.

    The results, files and outcomes of these inputs are discarded.

    Args:
        prepared: The prepared job.
        cores: The number of cores of a machine.

    Raises:
        BatchmillError: Any error of `prepare` and `run_shard`.
    """
    usual = min(cores, MAX_AUTO_WORKERS)
    if prepared.step.kind == "items":
        return Workers(usual, "one per core; this kind of step cannot run on only a few inputs")
    if prepared.step.is_batched:
        # The model runs in this process, so a batch that hangs would end this process.
        return Workers(usual, "one per core; a batch step is not measured")
    if prepared.step.is_async:
        return Workers(min(cores, MAX_AUTO_ASYNC_WORKERS), "enough for a step that waits")
    if restrictions():
        return Workers(usual, "one per core; nothing is measured while an allowlist is set")
    outcomes, busy_seconds = _execute_some(prepared)
    ok = [outcome for outcome in outcomes if outcome.kind == "ok"]
    return choose_workers(cores, [outcome.seconds for outcome in ok], busy_seconds)


def choose_workers(cores: int, seconds: Sequence[float], busy_seconds: float) -> Workers:
    """Choose the number of workers from the times of a trial.

    Args:
        cores: The number of cores of a machine.
        seconds: The wall time of each input.
        busy_seconds: The CPU time of all inputs together.

    >>> choose_workers(2, [0.5] * 4, 0.2)
    Workers(number=16, reason='4 inputs took 0.5 s each, with 10 % of the time on a core')
    """
    usual = min(cores, MAX_AUTO_WORKERS)
    whole = sum(seconds)
    if whole < _LEAST_SECONDS:
        return Workers(usual, f"one per core; the trial measured less than {_LEAST_SECONDS:g} s")
    busy = min(1.0, busy_seconds / whole)
    each = f"{len(seconds)} inputs took {whole / len(seconds):.2g} s each"
    reason = f"{each}, with {busy:.0%} of the time on a core".replace("%", " %")
    if busy >= _BUSY:
        return Workers(usual, reason)
    wanted = round(cores / max(busy, 1 / _MOST_PER_CORE))
    return Workers(max(usual, min(wanted, _MOST)), reason)


def _execute_some(prepared: Prepared) -> tuple[list[Outcome], float]:
    """Execute some inputs into a temporary dataset. Return their outcomes and CPU time."""
    outcomes: list[Outcome] = []
    with scratch_folder() as folder:
        runner = _ShortRunner(on_outcome=outcomes.append)
        execute_discarded(
            _some_of(prepared, folder),
            runner,
            ExecutionOptions(batch_size=1, num_workers=1),
            FailurePolicy(retries=0, timeout=_LONGEST_SECONDS),
        )
    return outcomes, max(0.0, runner.busy_seconds - _WORKER_SECONDS)


class _ShortRunner(InThisProcess):
    """Begins no input after a few seconds. `busy_seconds` is the CPU time of the workers."""

    busy_seconds = 0.0

    def run(self, run: Run, shards: Sequence[Shard], num_workers: int) -> ShardsEnd:
        late = threading.Timer(_SECONDS, run.ledger.control.request_stop, [run.number])
        late.start()
        before = _cpu_seconds()
        try:
            return super().run(run, shards, num_workers)
        finally:
            late.cancel()
            late.join()
            self.busy_seconds = _cpu_seconds() - before


def _some_of(prepared: Prepared, folder: Path) -> Prepared:
    """Prepare a job over a sample of the inputs. The largest 10 % are left out: they take long."""
    pending = prepared.plan.pending
    by_size = np.argsort(pending["size"].to_numpy(), kind="stable")
    usual = by_size[: max(1, len(by_size) * 9 // 10)]
    chosen = usual[np.linspace(0, len(usual) - 1, min(_INPUTS, len(usual))).astype(int)]
    rows = pending["position"].take(pa.array(np.unique(chosen)))
    return discarded_job(prepared, rows, folder)


def _cpu_seconds() -> float:
    """Return the CPU time in seconds of all ended children of this process."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
