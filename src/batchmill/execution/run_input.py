"""Runs a step on one input. Each error that the step raises becomes the input's outcome."""

import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from batchmill.errors import StepError, StoreError
from batchmill.execution.failures import (
    MissingError,
    RefusedError,
    ReportedError,
    failure_of,
    not_ok,
    printable,
)
from batchmill.execution.outputs import place_outputs
from batchmill.execution.rows import Row, encode_rows, rows_of
from batchmill.execution.staging import Input, StagingArea, stage
from batchmill.outcome import Fault, Outcome
from batchmill.step.load import Step
from batchmill.storage import open_store, remote
from batchmill.storage.addresses import parse_address
from batchmill.storage.escaped_names import has_escaped_file
from batchmill.storage.fingerprints import Fingerprint, fingerprint
from batchmill.storage.local import remove_folder

# The most fetches of one input. An input that changes while it is fetched is fetched again.
_FETCHES = 3
_ABSENT = Fingerprint(size=-1, mtime_ns=0, content="")
# The errors of a path that leads to no file. Others, such as EMFILE or EIO, concern this machine.
_NO_FILE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL}
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
    confined: Callable[[], bytes] | None = None,
) -> Outcome:
    """Run `step` on one input, and move its files into the dataset. Never raises.

    Args:
        step: The step.
        item: The input.
        staging: The folders of this attempt.
        indexed: Returns the input's item of the step's torch Dataset. Not called if the step is a
            function.
        hooks: Called before and after the step.
        confined: Calls `answer` in a confined process. None if the step is not confined.

    Returns:
        The input's outcome. An error that the step raised gives a `failed` outcome.
    """
    started = time.perf_counter()
    pid = os.getpid()
    seen = _ABSENT
    staged = None
    ours = True  # The engine's code is running. False while the step's code is running.
    try:
        seen = _fetch_and_read(item)
        if "out" in step.given or "outs" in step.given:
            staged = stage(staging, item)
        ours = False
        hooks.before()
        try:
            if confined:
                rows = rows_of(read_answer(confined()), staging.reserved)
            else:
                rows = _run(step, item, staging, indexed)
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
        if item.url:
            remove_folder(os.path.dirname(item.path))


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
        return json.dumps({"rows": encode_rows(rows)}).encode()
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
    return rows


def load(
    item: Input,
    staging: StagingArea,
    indexed: Callable[[], Any],
    hooks: StepHooks = _NO_HOOKS,
) -> tuple[Any, Loaded] | Outcome:
    """Load the sample of one input with `indexed`. Never raises.

    Returns:
        The sample, and its fingerprint and time; or the input's outcome if loading failed.
    """
    started = time.perf_counter()
    pid = os.getpid()
    seen = _ABSENT
    ours = True
    try:
        seen = _fetch_and_read(item)
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
        if item.url:
            remove_folder(os.path.dirname(item.path))


def conclude(
    step: Step, item: Input, staging: StagingArea, loaded: Loaded, result: Any, seconds: float
) -> Outcome:
    """Return the outcome of a loaded input. The step returned `result` after `seconds`."""
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
) -> Outcome:
    """Move an input's files into the dataset, and return the outcome `ok`."""
    outputs = place_outputs(staged, rows, staging, item.input_id)
    encoded = encode_rows(rows)
    return Outcome(
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
    )


def make_dataset(step: Step, inputs: Sequence[Input]) -> Any:
    """Create the torch Dataset of a class step, from the inputs' paths as text.

    Raises:
        StepError: The torch Dataset does not have one item for each input.
    """
    labels = {item.path: item.row.get("label") for item in inputs}
    extra = {"labels": labels} if "labels" in step.given else {}
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


def _run(step: Step, item: Input, staging: StagingArea, indexed: Callable[[], Any]) -> list[Row]:
    """Call the step, and return its rows. Its folder has been created."""
    if step.kind != "function":
        return rows_of(indexed(), staging.reserved)
    staged = staging.folder / item.input_id if "out" in step.given else None
    return rows_of(_call(step, item, staged), staging.reserved)


def _call(step: Step, item: Input, staged: Path | None) -> Any:
    given: dict[str, Any] = {}
    if staged:
        given["out"] = staged
    if "row" in step.given:
        given["row"] = dict(item.row)
    return step.target(Path(item.path), **given, **step.params)


def _fetch_and_read(item: Input) -> Fingerprint:
    """Fetch an input if it is remote, and read it.

    Raises:
        MissingError: The input does not exist.
        RefusedError: The store denies access to this input.
        StoreError: The store failed.
        OSError: The file exists, but cannot be read now.
    """
    try:
        return _fetch(item, item.planned) if item.planned else fingerprint(item.path)
    except (OSError, StoreError) as error:
        if isinstance(error, OSError) and error.errno not in _NO_FILE:
            raise
        cause = error.__cause__ if isinstance(error, StoreError) else error
        if isinstance(error, StoreError) and isinstance(cause, PermissionError):
            remote.check_bucket(item.url)  # Raises if the bucket denies access to all inputs.
            raise RefusedError(str(error)) from error
        if isinstance(error, StoreError) and not isinstance(cause, FileNotFoundError):
            if item.url.startswith(("http://", "https://")):
                raise RefusedError(str(error)) from error  # Other inputs may be on other servers.
            raise
        if not item.url and has_escaped_file(item.path):
            raise MissingError(
                f"{item.path}: the file's name is not UTF-8. Rename the file."
            ) from error
        why = error.reason if isinstance(error, StoreError) else "no such file."
        raise MissingError(
            f"{item.url or item.path}: {why} Create the file, or remove it from the manifest."
        ) from error


def _fetch(item: Input, planned: remote.FileStat) -> Fingerprint:
    """Fetch an input. Return a fingerprint whose fields all describe the same content."""
    os.makedirs(os.path.dirname(item.path), exist_ok=True)
    if planned.etag and parse_address(planned.etag):
        store = open_store(item.url.removesuffix(f"/{planned.etag}"))
        with store.open(planned.etag) as content, open(item.path, "wb") as file:
            shutil.copyfileobj(content, file)
        return _fetched(item, planned.mtime_ns, planned.etag)
    for _ in range(_FETCHES):
        remote.fetch(item.url, item.path)
        now = remote.stat(item.url)
        if now is None:
            break  # Some web servers return a file, but no size, time or ETag.
        if now.etag == planned.etag and (now.etag or now.mtime_ns == planned.mtime_ns):
            return _fetched(item, now.mtime_ns, now.etag)
        planned = now  # The input changed after planning, or during the fetch.
    # No time or ETag is known to describe what was fetched. The next plan compares the contents.
    return _fetched(item, remote.UNKNOWN_TIME, None)


def _fetched(item: Input, mtime_ns: int, etag: str | None) -> Fingerprint:
    # The times of the local copy say nothing about the input.
    seen = fingerprint(item.path)
    return seen._replace(mtime_ns=mtime_ns, etag=etag, ctime_ns=None)
