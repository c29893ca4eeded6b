"""Run a step on one input: whatever it raises becomes this input's outcome."""

import os
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from batchmill.errors import StepError, StoreError
from batchmill.fingerprints import Fingerprint, fingerprint
from batchmill.outcome import Fault, Kind, Outcome
from batchmill.outputs import OutputError, place_outputs
from batchmill.rows import RESERVED_KEYS, Row, encode_rows, rows_of
from batchmill.step import Step
from batchmill.storage import NO_ROOM, Store, remote
from batchmill.storage.local import has_room, remove_folder
from batchmill.storage.scratch import scratch_folder

_ENGINE = os.path.dirname(os.path.abspath(__file__))
_MAX_TEXT = 64 * 1024
_CLASS_NAME: Callable[[type], str] = type.__dict__["__name__"].__get__
# An input that is replaced while it is fetched is fetched again.
_FETCHES = 3
_ABSENT = Fingerprint(size=-1, mtime_ns=0, content="")


class Input(NamedTuple):
    """One input, as a step is given it: its name, its id, its local path, the manifest's row.

    One that has a `url` is fetched to `path` first; `planned` is what its store said of it when the
    run was planned.
    """

    name: str
    input_id: str
    path: str
    row: Mapping[str, Any]
    url: str = ""
    planned: remote.Seen | None = None


@dataclass(frozen=True, kw_only=True)
class Workbench:
    """Where one attempt at a shard puts what its steps write: in `staging`, then in the store.

    `fetched` is the folder for inputs that are not on this machine; `reserved` are the keys that no
    row may have.
    """

    store: Store
    staging: Path
    fetched: Path | None = None
    reserved: Set[str] = RESERVED_KEYS
    host: str = field(default_factory=socket.gethostname)


@contextmanager
def open_bench(
    store: Store, attempt: str, *, fetches: bool = False, reserved: Set[str] = RESERVED_KEYS
) -> Iterator[Workbench]:
    """Give a workbench for one attempt, whose name no other has; its folders go with the block."""
    with ExitStack() as stack:
        yield Workbench(
            store=store,
            staging=stack.enter_context(store.staging(attempt)),
            fetched=stack.enter_context(scratch_folder()) if fetches else None,
            reserved=reserved,
        )


class Loaded(NamedTuple):
    """An input whose sample is loaded: what it was when it was read, and the seconds it took."""

    seen: Fingerprint
    seconds: float


def execute(step: Step, item: Input, bench: Workbench, indexed: Callable[[], Any]) -> Outcome:
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
        failure = _failure(item, bench, error, time.perf_counter() - started, ours=ours)
        # What an earlier run has in place is not this attempt's to remove: it may be late, and
        # another run be at work already.
        if staged:
            remove_folder(staged)
        return failure._replace(**seen._asdict())
    finally:
        if item.url:
            remove_folder(os.path.dirname(item.path))


def load(item: Input, bench: Workbench, indexed: Callable[[], Any]) -> tuple[Any, Loaded] | Outcome:
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
        failure = _failure(item, bench, error, time.perf_counter() - started, ours=ours)
        return failure._replace(**seen._asdict())
    finally:
        if item.url:
            remove_folder(os.path.dirname(item.path))


def conclude(
    step: Step, item: Input, bench: Workbench, loaded: Loaded, result: Any, seconds: float
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
        failure = _failure(item, bench, error, total, ours=ours)
        if staged:
            remove_folder(staged)
        return failure._replace(**loaded.seen._asdict())


def fail(
    item: Input, bench: Workbench, loaded: Loaded, error: Exception | Fault, seconds: float
) -> Outcome:
    """Say of a loaded input that the step has failed with it."""
    remove_folder(bench.staging / item.input_id)
    total = loaded.seconds + seconds
    if isinstance(error, Exception):
        failure = _failure(item, bench, error, total, ours=False)
    else:
        failure = _not_ok(item, bench, "failed", error.error, _printable(error.message), total)
        failure = failure._replace(traceback=_printable(error.traceback))
    return failure._replace(**loaded.seen._asdict())


def stage(bench: Workbench, item: Input) -> Path:
    """Make an input's own empty folder for what the step writes."""
    staged = bench.staging / item.input_id
    remove_folder(staged)
    staged.mkdir()
    return staged


def _place(
    item: Input,
    bench: Workbench,
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
    """Read an input, once it is here. Raises _MissingError, _RefusedError, StoreError."""
    try:
        return _fetch(item, item.planned) if item.planned else fingerprint(item.path)
    except (OSError, StoreError) as error:
        cause = error.__cause__ if isinstance(error, StoreError) else error
        if isinstance(error, StoreError) and isinstance(cause, PermissionError):
            remote.check_bucket(item.url)  # If all is refused, it is not this one's fault.
            raise _RefusedError(str(error)) from error
        if isinstance(error, StoreError) and not isinstance(cause, FileNotFoundError):
            if item.url.startswith(("http://", "https://")):
                raise _RefusedError(str(error)) from error  # Each one may be another server.
            raise
        why = error.reason if isinstance(error, StoreError) else "no such file."
        raise _MissingError(
            f"{item.url or item.path}: {why} Put it there, or drop it from the manifest."
        ) from error


def _fetch(item: Input, planned: remote.Seen) -> Fingerprint:
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


class _MissingError(FileNotFoundError):
    """There is no such input."""


class _RefusedError(Exception):
    """The store does not give this one input to us."""


def _failure(
    item: Input, bench: Workbench, error: BaseException, seconds: float, *, ours: bool
) -> Outcome:
    if ours and isinstance(error, _MissingError):
        missing = _not_ok(item, bench, "missing", "FileNotFoundError", str(error), seconds)
        return missing._replace(attempts=0)
    if not has_room(bench.staging) or (bench.fetched and not has_room(bench.fetched)):
        # While what it has written is still there. For want of room anything may fail.
        return _not_ok(item, bench, "cancelled", "StoreError", NO_ROOM, seconds)
    if ours and isinstance(error, StoreError):
        nobodys = error.passing or error.general or isinstance(error.__cause__, PermissionError)
        kind: Kind = "cancelled" if nobodys else "failed"
        return _not_ok(item, bench, kind, "StoreError", str(error), seconds)
    # Not error.__class__.__name__: a class may have a say in that.
    if isinstance(error, _RefusedError):
        return _not_ok(item, bench, "failed", "StoreError", str(error), seconds)
    name = _printable(_CLASS_NAME(type(error)))
    outcome = _not_ok(item, bench, "failed", name, _text_of(error), seconds)
    if isinstance(error, OutputError):
        return outcome
    return outcome._replace(traceback=_traceback_of(error))


def _not_ok(
    item: Input, bench: Workbench, kind: Kind, error: str, message: str, seconds: float
) -> Outcome:
    return Outcome(
        input=item.name,
        input_id=item.input_id,
        kind=kind,
        attempts=1,
        seconds=seconds,
        finished_at=time.time(),
        host=bench.host,
        error=error,
        message=message,
    )


def lost(
    item: Input,
    bench: Workbench,
    *,
    kind: Kind,
    error: str,
    message: str,
    log: str,
    seconds: float,
) -> Outcome:
    """Make the outcome of an input whose process is gone, and remove what it has left behind."""
    remove_folder(bench.staging / item.input_id)
    if item.url:
        remove_folder(os.path.dirname(item.path))
    return _not_ok(item, bench, kind, error, message, seconds)._replace(log=_printable(log))


def _text_of(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException as fault:  # A step's exception may do anything, here too.
        text = f"(its text cannot be had: str() raised {type(fault).__name__})"
    return _printable(text)


def _traceback_of(error: BaseException) -> str:
    """Format a traceback from the step's first line on; the way there is of no use to anybody."""
    try:
        frames = _step_frames(error.__traceback__)
        if frames is None and error.__cause__ is None:
            return ""  # It is batchmill that does not take what the step gave: the message says it.
        return _printable("".join(traceback.format_exception(type(error), error, frames)))
    except BaseException as fault:
        return f"{type(error).__name__} (its traceback cannot be had: {type(fault).__name__})"


def _step_frames(frames: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame that is not batchmill's own."""
    while frames and os.path.dirname(frames.tb_frame.f_code.co_filename) == _ENGINE:
        frames = frames.tb_next
    return frames


def _printable(text: str) -> str:
    """Bound a text, and replace what no file or table takes."""
    if len(text) > _MAX_TEXT:
        half = _MAX_TEXT // 2
        gap = f"... {len(text) - _MAX_TEXT} characters left out ..."
        text = "\n".join([text[:half], gap, text[-half:]])
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
