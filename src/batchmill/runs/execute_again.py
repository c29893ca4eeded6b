"""Executes inputs of a job again, and compares the results with the recorded ones.

The new results are in a dataset that is discarded.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.state import State
from batchmill.core.options.job_options import PartitionOptions, RunOptions
from batchmill.core.outcome import one_line
from batchmill.core.planning.batching import Cores, own_cores
from batchmill.core.planning.decisions import Criteria
from batchmill.core.planning.plan import PLANNED_COLUMNS, make_plan, match_records
from batchmill.core.planning.prepare import Prepared
from batchmill.core.security.credentials import granted
from batchmill.core.storage import open_store
from batchmill.core.storage.scratch import scratch_folder
from batchmill.runs.run import Run, open_run
from batchmill.runs.shards.process import ShardProcessDiedError
from batchmill.runs.shards.process_pool import shard_processes
from batchmill.runs.shards.shard import Shard

# The columns of a record that `differences` compares.
RESULT_COLUMNS = ("input", "outcome", "rows", "outputs", "error", "message")
NO_OUTCOME = "has no outcome"
_SHOWN_CHARACTERS = 80
_POLL_SECONDS = 1.0


class ResultDifference(NamedTuple):
    """A difference between two results of an input: the column or file, and a line of text."""

    what: str
    text: str


def discarded_job(prepared: Prepared, rows: pa.Array | pa.ChunkedArray, folder: Path) -> Prepared:
    """Return a job that executes some inputs of another job into a dataset in a folder.

    Args:
        prepared: The other job.
        rows: The rows of the inputs in its manifest.
        folder: An empty folder.
    """
    manifest = prepared.manifest.take(rows)
    output, options = str(folder / "dataset"), prepared.job.options
    ledger = Ledger(open_store(output))
    nothing = State(ledger.store)
    matched = match_records(nothing.records(PLANNED_COLUMNS), manifest.inputs)
    job = replace(
        prepared.job,
        output=output,
        options=replace(
            options,
            execution=options.execution.model_copy(update={"log_steps": "off"}),
            partitions=PartitionOptions(),
            run=RunOptions(),
        ),
    )
    return Prepared(
        job=job,
        manifest=manifest,
        step=prepared.step,
        ledger=ledger,
        plan=make_plan(manifest, matched, Criteria(prepared.step.identity)),
        state=nothing,
        changes=ledger.changes(),
        step_changes=(),
    )


@contextmanager
def made_again(
    prepared: Prepared,
    rows: pa.Array | pa.ChunkedArray,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[Ledger]:
    """Execute some inputs of a job in a child process, without Prefect and Ray.

    Args:
        prepared: The job.
        rows: The rows of the inputs in its manifest.
        is_cancelled: Returns True if the execution must end early.

    Yields:
        The ledger of the new results. The results exist until the end of the block.

    Raises:
        BatchmillError: Any error of `prepare` and of the shards.
    """
    with scratch_folder() as folder:
        job = discarded_job(prepared, rows, folder)
        with open_run(job) as run:
            _, shards = run.divide(Cores(total=own_cores(), node=own_cores()))
            _run_in_child(run, shards, is_cancelled)  # The tables are not written.
        yield job.ledger


def compare_again(
    prepared: Prepared,
    rows: pa.Array | pa.ChunkedArray,
    records: pa.Table,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> dict[str, list[ResultDifference]]:
    """Execute some inputs of a job again, and compare.

    Args:
        prepared: The job.
        rows: The rows of the inputs in its manifest.
        records: The RESULT_COLUMNS of `ok` records. Those of other inputs are ignored.
        is_cancelled: Returns True if the execution must end early.

    Returns:
        The differences of the new results from the records, by the input's name. Inputs with equal
        results are left out.

    Raises the errors of `made_again`.
    """
    with made_again(prepared, rows, is_cancelled) as made:
        after = {new["input"]: new for new in made.records(RESULT_COLUMNS).to_pylist()}
    names = prepared.manifest.inputs["input"].take(rows)
    before = records.filter(pc.is_in(records["input"], value_set=names)).to_pylist()
    compared = {old["input"]: list(differences(old, after.get(old["input"]))) for old in before}
    return {name: different for name, different in compared.items() if different}


def count_kinds(found: Iterable[Sequence[ResultDifference]]) -> Counter[str]:
    """Return how many inputs differ in each column or file, given the differences of each input."""
    return Counter(what for those in found for what in dict.fromkeys(one.what for one in those))


def failure_text(record: Mapping[str, Any]) -> str:
    """Return why the input of a record is not ok, in one line."""
    return f"{record['outcome']}: {one_line(record['error'], record['message'])}"


def differences(
    before: Mapping[str, Any], after: Mapping[str, Any] | None
) -> Iterator[ResultDifference]:
    """Yield the differences between two results of an input.

    Args:
        before: The RESULT_COLUMNS of its `ok` record.
        after: Those of the new result. None if it has no outcome.
    """
    if after is None:
        yield ResultDifference("outcome", NO_OUTCOME)
        return
    if after["outcome"] != "ok":
        yield ResultDifference("outcome", failure_text(after))
        return
    files = ({file_name(f["path"]): f for f in record["outputs"]} for record in (before, after))
    yield from file_differences(*files)
    yield from row_differences(rows_of_record(before), rows_of_record(after))


def rows_of_record(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a record, with the names of its files instead of their paths.

    The path of a file contains a hash of all files of its input.
    """
    names = {file["path"]: file_name(file["path"]) for file in record["outputs"]}
    return [
        {
            column: names.get(value, value) if isinstance(value, str) else value
            for column, value in row.items()
        }
        for row in json.loads(record["rows"])
    ]


def row_differences(
    old_rows: Sequence[Mapping[str, Any]], new_rows: Sequence[Mapping[str, Any]]
) -> Iterator[ResultDifference]:
    """Yield the differences between the rows of two results."""
    if len(old_rows) != len(new_rows):
        text = f"{len(old_rows):,} rows -> {len(new_rows):,} rows"
        yield ResultDifference("number of rows", text)
    for old, new in zip(old_rows, new_rows, strict=False):
        for column in dict.fromkeys([*old, *new]):
            values = [_value(row, column) for row in (old, new)]
            if values[0] != values[1]:
                text = f"{column}: {' -> '.join(map(_short, values))}"
                yield ResultDifference(column, text)


def file_differences(
    before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]
) -> Iterator[ResultDifference]:
    """Yield the differences between the files of two results, each with `size` and `content`."""
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            text = f"{name} {'is new' if old is None else 'is not written'}"
            yield ResultDifference(name, text)
        elif (old["size"], old["content"]) != (new["size"], new["content"]):
            text = f"{name}: {old['size']:,} bytes -> {new['size']:,} bytes, other content"
            yield ResultDifference(name, text)


def _value(row: Mapping[str, Any], column: str) -> str:
    """Return a value as JSON."""
    if column not in row:
        return "no value"
    return json.dumps(row[column], sort_keys=True, ensure_ascii=False)


def file_name(path: str) -> str:
    """Return the name of an output in the folder of its input.

    >>> file_name("files/a-ae53ac10e51459de.7cd8e667d143/sub/clip.wav")
    'sub/clip.wav'
    """
    return path.split("/", 2)[-1]


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]} ..."


def _run_in_child(run: Run, shards: Sequence[Shard], is_cancelled: Callable[[], bool]) -> None:
    """Execute shards one after another in a child process, without Prefect and Ray.

    If the process dies, the remaining inputs have no outcome.

    Args:
        run: The run.
        shards: Its shards.
        is_cancelled: Returns True if the shards must end early.
    """
    access = granted()
    with (
        suppress(ShardProcessDiedError),
        ThreadPoolExecutor(1) as thread,
        shard_processes() as processes,
        # Left first: after an error here, the process is killed, so the thread ends.
        processes.one() as process,
    ):
        for shard in shards:
            ended = thread.submit(process.run, shard, access, lambda _: None)
            while not ended.done():
                if is_cancelled():
                    run.ledger.control.request_stop(run.number)
                wait([ended], _POLL_SECONDS)
            ended.result()
