"""Runs a step on one input. Each error that the step raises becomes the input's outcome."""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from batchmill.errors import StepError
from batchmill.execution.failures import (
    ReportedError,
    failure_of,
    not_ok,
    printable,
)
from batchmill.execution.open_input import opened
from batchmill.execution.outputs import place_outputs
from batchmill.execution.read_input import discard, fetch_and_read, remove_flat
from batchmill.execution.rows import File, Row, encode_rows, rows_of
from batchmill.execution.staging import Input, StagingArea, stage
from batchmill.outcome import Fault, Outcome, UnstoredOutcome
from batchmill.step.load import Step
from batchmill.storage import remote
from batchmill.storage.fingerprints import (
    Fingerprint,
)
from batchmill.storage.local import remove_folder
from batchmill.storage.objects import ObjectStore
from batchmill.storage.store import in_threads

_ABSENT = Fingerprint(size=-1, mtime_ns=0, content="")
_CONFINED = (
    "The step is confined (--confine). It may change files only in its output folder, in the "
    "temporary folder and in --allow-write, and connect only with --allow-network."
)


class Loaded(NamedTuple):
    """The fingerprint of an input when it was read, and how long loading took in seconds."""

    seen: Fingerprint
    seconds: float


class StepHooks(NamedTuple):
    """Functions to call before the step, and when it has returned or raised."""

    before: Callable[[], None] = lambda: None
    after: Callable[[], None] = lambda: None


_NO_HOOKS = StepHooks()


def execute(
    step: Step,
    item: Input,
    staging: StagingArea,
    indexed: Callable[[], Any],
    hooks: StepHooks = _NO_HOOKS,
) -> Outcome:
    """Run `step` on one input, and move its files into the dataset. Never raises.

    The arguments are those of `run_step`.
    """
    done = run_step(step, item, staging, indexed, hooks)
    return store_all([done])[0]


def run_step(
    step: Step,
    item: Input,
    staging: StagingArea,
    indexed: Callable[[], Any],
    hooks: StepHooks = _NO_HOOKS,
    confined: Callable[[], bytes] | None = None,
    fetched: Callable[[], Fingerprint | None] = lambda: None,
) -> Outcome | UnstoredOutcome:
    """Run `step` on one input. Never raises.

    Args:
        step: The step.
        item: The input.
        staging: The folders of this attempt.
        indexed: Returns the input's item of the step's torch Dataset. Not called if the step is a
            function.
        hooks: Called before and after the step.
        confined: Calls `answer` in a confined process. None if the step is not confined.
        fetched: Returns the result of `fetch_and_read` if it was called for this input.

    Returns:
        The input's outcome. An error that the step raised gives a `failed` outcome. If the dataset
        is remote, the output files are not uploaded yet.
    """
    started = time.perf_counter()
    pid = os.getpid()
    seen = _ABSENT._replace(companions=item.planned_companions)
    staged = None
    ours = True  # The engine's code is running. False while the step's code is running.
    try:
        seen = fetched() or fetch_and_read(item)
        if "out" in step.given or "outs" in step.given:
            staged = stage(staging, item)
        ours = False
        hooks.before()
        try:
            if confined:
                rows = rows_of(read_answer(confined()), staging.reserved)
            else:
                rows = _run(step, item, staging, indexed, seen)
        finally:
            _end_if_forked(pid)
            hooks.after()
        ours = True
        return _place(item, staging, staged, rows, Loaded(seen, 0.0), started)
    except BaseException as error:  # The error becomes the input's outcome.
        failure = failure_of(item, staging, error, time.perf_counter() - started, ours=ours)
        if staged:
            remove_folder(staged)
        return failure._replace(**seen._asdict())
    finally:
        discard(item)


def answer(step: Step, item: Input, staging: StagingArea, indexed: Callable[[], Any]) -> bytes:
    """Run `step` on one input in a confined process. `read_answer` reads the result.

    The arguments are those of `execute`. Never raises.
    """
    pid = os.getpid()
    try:
        try:
            rows = _run(step, item, staging, indexed)
        finally:
            _end_if_forked(pid)
        files = [
            (number, key, value.path)
            for number, row in enumerate(rows)
            for key, value in row.items()
            if isinstance(value, File)
        ]
        text = encode_rows(map(_without_files, rows))
        return json.dumps({"rows": text, "files": files}).encode()
    except BaseException as error:  # The error becomes the input's outcome.
        failure = failure_of(item, staging, error, 0.0, ours=False)
        if isinstance(error, PermissionError):
            failure = failure._replace(message=f"{failure.message}. {_CONFINED}")
        fields = {name: getattr(failure, name) for name in ReportedError.fields}
        return json.dumps({"failure": fields}).encode()


def read_answer(data: bytes) -> list[Row]:
    """Return the rows from an answer of a confined process. Raises ReportedError for a failure."""
    found = json.loads(data)
    if "failure" in found:
        raise ReportedError(**found["failure"])
    rows: list[Row] = json.loads(found["rows"])
    for number, key, path in found.get("files", ()):
        rows[number][key] = File(path)
    return rows


def load(
    item: Input,
    staging: StagingArea,
    indexed: Callable[[], Any],
    hooks: StepHooks = _NO_HOOKS,
    fetched: Callable[[], Fingerprint | None] = lambda: None,
) -> tuple[Any, Loaded] | Outcome:
    """Load the sample of one input with `indexed`. Never raises. `run_step` describes `fetched`.

    Returns:
        The sample, and its fingerprint and time; or the input's outcome if loading failed.
    """
    started = time.perf_counter()
    pid = os.getpid()
    seen = _ABSENT._replace(companions=item.planned_companions)
    ours = True
    try:
        seen = fetched() or fetch_and_read(item)
        ours = False
        hooks.before()
        try:
            value = indexed()
        finally:
            _end_if_forked(pid)
            hooks.after()
        return value, Loaded(seen, time.perf_counter() - started)
    except BaseException as error:  # The error becomes the input's outcome.
        failure = failure_of(item, staging, error, time.perf_counter() - started, ours=ours)
        return failure._replace(**seen._asdict())
    finally:
        discard(item)


def conclude(
    step: Step, item: Input, staging: StagingArea, loaded: Loaded, result: Any, seconds: float
) -> Outcome | UnstoredOutcome:
    """Return the outcome of a loaded input. The step returned `result` after `seconds`.

    If the dataset is remote, the output files are not uploaded yet.
    """
    staged = staging.folder / item.input_id if "outs" in step.given else None
    started = time.perf_counter() - seconds
    ours = False
    try:
        rows = rows_of(result, staging.reserved)
        ours = True
        return _place(item, staging, staged, rows, loaded, started)
    except Exception as error:
        total = loaded.seconds + time.perf_counter() - started
        failure = failure_of(item, staging, error, total, ours=ours)
        if staged:
            remove_folder(staged)
        return failure._replace(**loaded.seen._asdict())


def fail(
    item: Input, staging: StagingArea, loaded: Loaded, error: Exception | Fault, seconds: float
) -> Outcome:
    """Return the outcome of a loaded input for which the step failed."""
    remove_folder(staging.folder / item.input_id)
    total = loaded.seconds + seconds
    if isinstance(error, Exception):
        failure = failure_of(item, staging, error, total, ours=False)
    else:
        failure = not_ok(item, staging, "failed", error.error, printable(error.message), total)
        failure = failure._replace(traceback=printable(error.traceback))
    return failure._replace(**loaded.seen._asdict())


def _place(
    item: Input,
    staging: StagingArea,
    staged: Path | None,
    rows: list[Row],
    loaded: Loaded,
    started: float,
) -> Outcome | UnstoredOutcome:
    """Move an input's files into the dataset, and return the outcome `ok`.

    If the dataset is remote, the files are only named.
    """
    uploads: list[Callable[[], None]] = []
    store, put_later = staging.store, None
    if isinstance(store, ObjectStore):
        remote_store = store

        def put_later(folder: Path, name: str, contents: Mapping[str, str]) -> None:
            uploads.extend(remote_store.uploads(folder, name, contents))

    outputs = place_outputs(staged, rows, staging, item.input_id, put_later)
    encoded = encode_rows(rows)
    outcome = Outcome(
        input=item.name,
        input_id=item.input_id,
        kind="ok",
        attempts=1,
        seconds=loaded.seconds + time.perf_counter() - started,
        finished_at=time.time(),
        host=staging.host,
        rows=encoded,
        outputs=outputs,
        size=loaded.seen.size,
        mtime_ns=loaded.seen.mtime_ns,
        etag=loaded.seen.etag,
        ctime_ns=loaded.seen.ctime_ns,
        content=loaded.seen.content,
        companions=loaded.seen.companions,
    )
    if not uploads:
        return outcome
    size = sum(file.size for file in outputs)
    return UnstoredOutcome(size, uploads, partial(_finish, item, staging, staged, outcome))


def store_all(placed: Sequence[Outcome | UnstoredOutcome]) -> list[Outcome]:
    """Upload the files of several inputs, many at a time. Return the outcomes in their order."""
    uploads = [
        (number, upload)
        for number, one in enumerate(placed)
        if isinstance(one, UnstoredOutcome)
        for upload in one.uploads
    ]
    errors: dict[int, Exception] = {}

    def store(numbered: tuple[int, Callable[[], object]]) -> None:
        number, upload = numbered
        try:
            upload()
        except Exception as error:  # It becomes the outcome of its input only.
            errors[number] = error

    in_threads(store, uploads, remote.THREADS)
    return [
        one if isinstance(one, Outcome) else one.finish(errors.get(number))
        for number, one in enumerate(placed)
    ]


def _finish(
    item: Input,
    staging: StagingArea,
    staged: Path | None,
    outcome: Outcome,
    error: Exception | None,
) -> Outcome:
    """Return the outcome of an input after its uploads, of which one may have failed."""
    if error:
        failure = failure_of(item, staging, error, outcome.seconds, ours=True)
        seen = {name: getattr(outcome, name) for name in Fingerprint._fields}
        outcome = failure._replace(**seen)
        if staged:
            remove_folder(staged)
    elif staged:
        names = [file.path.split("/", 2)[2] for file in outcome.outputs]
        remove_flat(str(staged), [f"{staged}/{name}" for name in names])
    return outcome


def make_dataset(step: Step, inputs: Sequence[Input]) -> Any:
    """Create the torch Dataset of a class step, from the paths of the inputs as text.

    The companions are lists of paths, too, with None for an empty cell.

    Raises:
        StepError: The torch Dataset does not have one item for each input.
    """
    extra: dict[str, Any] = {}
    if "labels" in step.given:
        extra["labels"] = {item.path: item.row.get("label") for item in inputs}
    for column in step.given & {name for item in inputs for name in item.companions}:
        files = [item.companions[column] for item in inputs]
        extra[column] = [file and file.path for file in files]
    made = step.target([item.path for item in inputs], **extra, **step.params)
    if len(made) != len(inputs):
        raise StepError(
            f"step {step.ref}: the torch Dataset has {len(made)} items for {len(inputs)} inputs. "
            "It must have one item per input, in the same order."
        )
    return made


def _end_if_forked(pid: int) -> None:
    """End this process if the step forked it: only the original process may return."""
    if os.getpid() != pid:
        os._exit(0)


def _run(
    step: Step,
    item: Input,
    staging: StagingArea,
    indexed: Callable[[], Any],
    seen: Fingerprint = _ABSENT,
) -> list[Row]:
    """Call the step, and return its rows. Its folder has been created."""
    if step.kind != "function":
        rows = rows_of(indexed(), staging.reserved)
    else:
        staged = staging.folder / item.input_id if "out" in step.given else None
        with opened(item, seen) if step.opens_input else nullcontext(Path(item.path)) as source:
            rows = rows_of(_call(step, item, source, staged), staging.reserved)
    if step.declared:
        step.declared.check(encode_rows(map(_without_files, rows)))
    return rows


def _without_files(row: Row) -> Row:
    """Return a row with the names of its files as text."""
    return {key: value.path if isinstance(value, File) else value for key, value in row.items()}


def _call(step: Step, item: Input, source: Path | BinaryIO, staged: Path | None) -> Any:
    given: dict[str, Any] = {}
    if staged:
        given["out"] = staged
    for column, file in item.companions.items():
        if column in step.given:
            given[column] = file and Path(file.path)
    if "row" in step.given:
        given["row"] = {**item.row, **_paths(item)}
    return step.target(source, **given, **step.params)


def _paths(item: Input) -> dict[str, str | None]:
    """Return the local path of each companion of an input."""
    return {column: file and file.path for column, file in item.companions.items()}
