"""Decides by a random sample whether the outputs of changed code are equal to the present ones."""

import json
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.ledger.ledger import Ledger
from batchmill.options.failure_policy import FailurePolicy
from batchmill.options.groups import ExecutionOptions
from batchmill.outcome import one_line
from batchmill.planning.batching import Cores, own_cores
from batchmill.planning.change_check import ChangeCheck
from batchmill.planning.prepare import Prepared, check_budget, code_changes, plan_with
from batchmill.planning.sample import random_sample
from batchmill.runs.discarded_job import discarded_job, execute_discarded
from batchmill.runs.run import Run
from batchmill.runs.runner import Runner, ShardsEnd
from batchmill.security.credentials import granted
from batchmill.shards.process import ShardProcessDiedError
from batchmill.shards.process_pool import shard_processes
from batchmill.shards.shard import Shard
from batchmill.storage.scratch import scratch_folder

_COLUMNS = ("input", "outcome", "rows", "outputs", "error", "message")
_SHOWN_INPUTS, _SHOWN_CHARACTERS = 5, 80
_POLL_SECONDS = 1.0


def verify_change(
    prepared: Prepared,
    execution: ExecutionOptions,
    policy: FailurePolicy,
    *,
    on_sample: Callable[[int], None] = lambda _: None,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> Prepared:
    """Execute a sample with the changed code of the step, and compare its results.

    The sample is taken from the inputs whose only reason to be executed is the changed code. It is
    executed into a temporary dataset on this machine, which is discarded.

    Args:
        prepared: The prepared job. Without `verify_change`, or if the check is done, nothing
            happens.
        execution: How the inputs are divided into batches.
        policy: The limits of an input.
        on_sample: Called with the number of inputs before they are executed.
        is_cancelled: Returns True if the run must end early.

    Returns:
        The job with its `change_check`. If all results are equal, its plan keeps the outputs.

    Raises:
        OptionError: The run is forecast to exceed its budget.
        BatchmillError: Any error of `prepare` and of the sample's shards.
    """
    if not prepared.job.verify_change or prepared.change_check:
        return prepared
    check = code_changes(prepared)
    # A plan as if the sample were equal contains the inputs that could be kept.
    candidate = plan_with(prepared, replace(check, sample=1))
    kept = candidate.plan.adopted
    if not len(kept):
        reason = check.reason or "there is no input with changed code as its only reason"
        found = replace(prepared, change_check=ChangeCheck(reason=reason))
    elif prepared.step.kind == "items":
        reason = "a step with one item per row of the manifest cannot run on a sample"
        found = replace(prepared, change_check=ChangeCheck(reason=reason))
    else:
        check = replace(check, inputs=len(kept), seed=secrets.randbelow(2**31))
        check = _compare_sample(prepared, kept, check, execution, policy, on_sample, is_cancelled)
        found = replace(candidate if check.is_equal else prepared, change_check=check)
    check_budget(found)
    return found


def _compare_sample(
    prepared: Prepared,
    kept: pa.ChunkedArray,
    check: ChangeCheck,
    execution: ExecutionOptions,
    policy: FailurePolicy,
    on_sample: Callable[[int], None],
    is_cancelled: Callable[[], bool],
) -> ChangeCheck:
    """Execute a sample of the inputs `kept`, and return the check with its result."""
    manifest = prepared.manifest
    rows = pc.indices_nonzero(pc.is_in(manifest.inputs["input"], value_set=kept))
    rows = rows.take(random_sample(manifest, rows, prepared.job.verify_change, check.seed))
    on_sample(len(rows))
    with scratch_folder() as folder:
        job = discarded_job(prepared, rows, folder)
        # One failure decides, so the remaining inputs need not be executed.
        strict = policy.model_copy(update={"max_failures": "0", "fail_fast": True})
        execute_discarded(job, _ChildProcess(is_cancelled), execution, strict)
        names = job.manifest.inputs["input"]
        before, after = (_results(one, names) for one in (prepared.ledger, job.ledger))
    found = {name: list(_differences(before[name], after.get(name))) for name in before}
    # With `fail_fast`, inputs without an outcome say nothing. They follow those with an outcome.
    different = sorted(
        (name for name in found if found[name]), key=lambda name: (name not in after, name)
    )
    return replace(
        check,
        sample=len(rows),
        different=len(different),
        differences=tuple(f"{n}: {found[n][0]}" for n in islice(different, _SHOWN_INPUTS)),
    )


class _ChildProcess(Runner):
    """Executes shards one after another in a child process, without Prefect and Ray.

    Args:
        is_cancelled: Returns True if the shards must end early.
    """

    def __init__(self, is_cancelled: Callable[[], bool]) -> None:
        self._is_cancelled = is_cancelled

    @property
    def cores(self) -> Cores:
        """The cores that this process may use."""
        return Cores(total=own_cores(), node=own_cores())

    def run(self, run: Run, shards: Sequence[Shard], num_workers: int) -> ShardsEnd:  # noqa: ARG002
        """Execute the shards. If the process dies, the remaining inputs have no outcome."""
        try:
            with self._stopping(run), shard_processes() as processes, processes.one() as process:
                for shard in shards:
                    process.run(shard, granted(), lambda _: None)
        except ShardProcessDiedError as error:
            return ShardsEnd(lost=True, reasons=[str(error)])
        return ShardsEnd()

    @contextmanager
    def _stopping(self, run: Run) -> Iterator[None]:
        """Request that the shards end early if the run is cancelled during the block."""
        is_over = threading.Event()

        def watch() -> None:
            while not self._is_cancelled():
                if is_over.wait(_POLL_SECONDS):
                    return
            run.ledger.control.request_stop(run.number)

        watcher = threading.Thread(target=watch, name="cancelled-sample", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            is_over.set()
            watcher.join()


def _results(ledger: Ledger, names: pa.ChunkedArray) -> dict[str, dict[str, Any]]:
    """Return the records of some inputs by the input's name."""
    records = ledger.records(_COLUMNS)
    records = records.filter(pc.is_in(records["input"], value_set=names))
    return {record["input"]: record for record in records.to_pylist()}


def _differences(before: Mapping[str, Any], after: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the differences between two results of an input, one line each."""
    if after is None:
        yield "has no outcome"
        return
    if after["outcome"] != "ok":
        yield f"{after['outcome']}: {one_line(after['error'], after['message'])}"
        return
    files = ({_name(file["path"]): file for file in one["outputs"]} for one in (before, after))
    yield from _file_differences(*files)
    old_rows, new_rows = (json.loads(result["rows"]) for result in (before, after))
    if len(old_rows) != len(new_rows):
        yield f"{len(old_rows):,} rows -> {len(new_rows):,} rows"
    for old, new in zip(old_rows, new_rows, strict=False):
        for column in dict.fromkeys([*old, *new]):
            values = [_value(row, column) for row in (old, new)]
            if values[0] != values[1]:
                yield f"{column}: {' -> '.join(map(_short, values))}"


def _file_differences(
    before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            yield f"{name} {'is new' if old is None else 'is not written'}"
        elif (old["size"], old["content"]) != (new["size"], new["content"]):
            yield f"{name}: {old['size']:,} bytes -> {new['size']:,} bytes, other content"


def _value(row: Mapping[str, Any], column: str) -> str:
    """Return a value as JSON, without the folder of an output, whose name has a hash."""
    if column not in row:
        return "no value"
    value = row[column]
    if column == "output" and isinstance(value, str):
        value = _name(value)
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _name(path: str) -> str:
    """Return the name of an output in the folder of its input.

    >>> _name("files/a-ae53ac10e51459de.7cd8e667d143/sub/clip.wav")
    'sub/clip.wav'
    """
    return path.split("/", 2)[-1]


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]} ..."
