"""Run a step on one input: whatever it raises becomes this input's outcome."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from batchmill.errors import StepError, StoreError
from batchmill.execution.failures import MissingError, RefusedError, failure_of, not_ok, printable
from batchmill.execution.outputs import place_outputs
from batchmill.execution.rows import Row, encode_rows, rows_of
from batchmill.execution.staging import Input, StagingArea, stage
from batchmill.outcome import Fault, Outcome
from batchmill.step.load import Step
from batchmill.storage import remote
from batchmill.storage.fingerprints import Fingerprint, fingerprint
from batchmill.storage.local import remove_folder

# An input that is replaced while it is fetched is fetched again.
_FETCHES = 3
_ABSENT = Fingerprint(size=-1, mtime_ns=0, content="")


class Loaded(NamedTuple):
    """An input whose sample is loaded: what it was when it was read, and the seconds it took."""

    seen: Fingerprint
    seconds: float


def execute(step: Step, item: Input, bench: StagingArea, indexed: Callable[[], Any]) -> Outcome:
    """Run `step` on one input, put its files in place, and say what became of it.

    `indexed` gives the result of a step that is no function: it looks the input up in the step's
    Dataset. Nothing is raised but what ends the process.
    """
    started = time.perf_counter()
    pid = os.getpid()
    seen = _ABSENT
    staged = None
    ours = True  # Not the step's, whose errors may be of any kind.
    try:
        seen = _take(item)
        if "out" in step.given or "outs" in step.given:
            staged = stage(bench, item)
        ours = False
        result = _call(step, item, staged) if step.kind == "function" else indexed()
        rows = rows_of(result, bench.reserved)
        _end_a_fork(pid)
        ours = True
        return _place(item, bench, staged, rows, Loaded(seen, 0.0), started)
    except BaseException as error:  # An input's own fault becomes its outcome.
        _end_a_fork(pid)
        failure = failure_of(item, bench, error, time.perf_counter() - started, ours=ours)
        # What an earlier run has in place is not this attempt's to remove: it may be late, and
        # another run be at work already.
        if staged:
            remove_folder(staged)
        return failure._replace(**seen._asdict())
    finally:
        if item.url:
            remove_folder(os.path.dirname(item.path))


def load(
    item: Input, bench: StagingArea, indexed: Callable[[], Any]
) -> tuple[Any, Loaded] | Outcome:
    """Load the sample of one input with `indexed`; what it raises becomes the input's outcome."""
    started = time.perf_counter()
    pid = os.getpid()
    seen = _ABSENT
    ours = True
    try:
        seen = _take(item)
        ours = False
        value = indexed()
        _end_a_fork(pid)
        return value, Loaded(seen, time.perf_counter() - started)
    except BaseException as error:  # An input's own fault becomes its outcome.
        _end_a_fork(pid)
        failure = failure_of(item, bench, error, time.perf_counter() - started, ours=ours)
        return failure._replace(**seen._asdict())
    finally:
        if item.url:
            remove_folder(os.path.dirname(item.path))


def conclude(
    step: Step, item: Input, bench: StagingArea, loaded: Loaded, result: Any, seconds: float
) -> Outcome:
    """Say what became of a loaded input: `result` is what the step gave for it, in `seconds`."""
    staged = bench.staging / item.input_id if "outs" in step.given else None
    started = time.perf_counter() - seconds
    ours = False
    try:
        rows = rows_of(result, bench.reserved)
        ours = True
        return _place(item, bench, staged, rows, loaded, started)
    except Exception as error:
        total = loaded.seconds + time.perf_counter() - started
        failure = failure_of(item, bench, error, total, ours=ours)
        if staged:
            remove_folder(staged)
        return failure._replace(**loaded.seen._asdict())


def fail(
    item: Input, bench: StagingArea, loaded: Loaded, error: Exception | Fault, seconds: float
) -> Outcome:
    """Say of a loaded input that the step has failed with it."""
    remove_folder(bench.staging / item.input_id)
    total = loaded.seconds + seconds
    if isinstance(error, Exception):
        failure = failure_of(item, bench, error, total, ours=False)
    else:
        failure = not_ok(item, bench, "failed", error.error, printable(error.message), total)
        failure = failure._replace(traceback=printable(error.traceback))
    return failure._replace(**loaded.seen._asdict())


def _place(
    item: Input,
    bench: StagingArea,
    staged: Path | None,
    rows: list[Row],
    loaded: Loaded,
    started: float,
) -> Outcome:
    """Put an input's files in place, and make the outcome of one that is ok."""
    outputs = place_outputs(staged, rows, bench.store, item.input_id)
    encoded = encode_rows(rows)
    return Outcome(
        input=item.name,
        input_id=item.input_id,
        kind="ok",
        attempts=1,
        seconds=loaded.seconds + time.perf_counter() - started,
        finished_at=time.time(),
        host=bench.host,
        rows=encoded,
        outputs=outputs,
        size=loaded.seen.size,
        mtime_ns=loaded.seen.mtime_ns,
        etag=loaded.seen.etag,
        content=loaded.seen.content,
    )


def make_dataset(step: Step, inputs: Sequence[Input]) -> Any:
    """Make the Dataset of a step that is a class: from the inputs' paths, as text.

    Raises StepError unless it has one item for each input.
    """
    labels = {item.path: item.row.get("label") for item in inputs}
    extra = {"labels": labels} if "labels" in step.given else {}
    made = step.target([item.path for item in inputs], **extra, **step.params)
    if len(made) != len(inputs):
        raise StepError(
            f"step {step.ref}: the Dataset has {len(made)} items for {len(inputs)} inputs. "
            "As a step, it must have one item for each input, in the same order."
        )
    return made


def _end_a_fork(pid: int) -> None:
    """End a process that a step has forked and that has come back from it: one is enough."""
    if os.getpid() != pid:
        os._exit(0)


def _call(step: Step, item: Input, staged: Path | None) -> Any:
    given: dict[str, Any] = {}
    if staged:
        given["out"] = staged
    if "row" in step.given:
        given["row"] = dict(item.row)
    return step.target(Path(item.path), **given, **step.params)


def _take(item: Input) -> Fingerprint:
    """Read an input, once it is here. Raises MissingError, RefusedError, StoreError."""
    try:
        return _fetch(item, item.planned) if item.planned else fingerprint(item.path)
    except (OSError, StoreError) as error:
        cause = error.__cause__ if isinstance(error, StoreError) else error
        if isinstance(error, StoreError) and isinstance(cause, PermissionError):
            remote.check_bucket(item.url)  # If all is refused, it is not this one's fault.
            raise RefusedError(str(error)) from error
        if isinstance(error, StoreError) and not isinstance(cause, FileNotFoundError):
            if item.url.startswith(("http://", "https://")):
                raise RefusedError(str(error)) from error  # Each one may be another server.
            raise
        why = error.reason if isinstance(error, StoreError) else "no such file."
        raise MissingError(
            f"{item.url or item.path}: {why} Put it there, or drop it from the manifest."
        ) from error


def _fetch(item: Input, planned: remote.FileStat) -> Fingerprint:
    """Bring an input here, and say what it was: what is recorded of it belongs together."""
    os.makedirs(os.path.dirname(item.path), exist_ok=True)
    for _ in range(_FETCHES):
        remote.fetch(item.url, item.path)
        now = remote.look(item.url)
        if now is None:
            break  # Some web servers give files and will not talk of them.
        if now.etag == planned.etag and (now.etag or now.mtime_ns == planned.mtime_ns):
            break
        planned = now  # It was another a moment ago.
    return fingerprint(item.path)._replace(mtime_ns=planned.mtime_ns, etag=planned.etag)
