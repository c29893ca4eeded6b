"""Run a step on one input: whatever it raises becomes this input's outcome."""

import os
import socket
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from batchmill.errors import StepError
from batchmill.fingerprints import Fingerprint, fingerprint
from batchmill.ledger import FILES, STAGING
from batchmill.outcome import Kind, Outcome
from batchmill.outputs import OutputError, place_outputs, remove_folder
from batchmill.rows import encode_rows, rows_of
from batchmill.step import Step

_ENGINE = os.path.dirname(os.path.abspath(__file__))
_MAX_TEXT = 64 * 1024
_CLASS_NAME: Callable[[type], str] = type.__dict__["__name__"].__get__
_ABSENT = Fingerprint(size=-1, mtime_ns=0, content="")


class Input(NamedTuple):
    """One input, as a step is given it: its name, its id, its local path, the manifest's row."""

    name: str
    input_id: str
    path: str
    row: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Workbench:
    """Where one attempt at a shard puts what its steps write; its folders last as long as `with`.

    `dataset` is the dataset's folder, `attempt` a name that no other attempt has.
    """

    dataset: Path
    attempt: str
    host: str = field(default_factory=socket.gethostname)

    @property
    def staging(self) -> Path:
        """The folder of the outputs that are being written."""
        return self.dataset / STAGING / self.attempt

    def __enter__(self) -> Self:
        (self.dataset / FILES).mkdir(parents=True, exist_ok=True)
        self.staging.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *exception: object) -> None:
        remove_folder(self.staging)
        with suppress(OSError):  # Another attempt has its own there.
            self.staging.parent.rmdir()


def execute(step: Step, item: Input, bench: Workbench, indexed: Callable[[], Any]) -> Outcome:
    """Run `step` on one input, put its files in place, and say what became of it.

    `indexed` gives the result of a step that is no function: it looks the input up in the step's
    Dataset. Nothing is raised but what ends the process.
    """
    started = time.perf_counter()
    pid = os.getpid()
    seen = _ABSENT
    staged = bench.staging / item.input_id if "out" in step.given else None
    kind: Kind = "failed"
    try:
        try:
            seen = fingerprint(item.path)
        except OSError as error:
            kind = "missing"
            raise FileNotFoundError(
                f"{item.path}: no such file. Put it there, or drop it from the manifest."
            ) from error
        if staged:
            remove_folder(staged)
            staged.mkdir()
        result = _call(step, item, staged) if step.kind == "function" else indexed()
        rows = rows_of(result)
        _end_a_fork(pid)
        outputs = place_outputs(staged, rows, bench.dataset, item.input_id)
        encoded = encode_rows(rows)
    except BaseException as error:  # An input's own fault becomes its outcome.
        _end_a_fork(pid)
        # What an earlier run has in place is not this attempt's to remove: it may be late, and
        # another run be at work already.
        if staged:
            remove_folder(staged)
        failure = _failure(item, bench, kind, error, time.perf_counter() - started)
        attempts = 0 if kind == "missing" else 1
        return failure._replace(attempts=attempts, **seen._asdict())
    return Outcome(
        input=item.name,
        input_id=item.input_id,
        kind="ok",
        attempts=1,
        seconds=time.perf_counter() - started,
        finished_at=time.time(),
        host=bench.host,
        rows=encoded,
        outputs=outputs,
        size=seen.size,
        mtime_ns=seen.mtime_ns,
        content=seen.content,
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


def _failure(
    item: Input, bench: Workbench, kind: Kind, error: BaseException, seconds: float
) -> Outcome:
    own_fault = isinstance(error, OutputError) or kind == "missing"
    # Not error.__class__.__name__: a class may have a say in that.
    name = _printable(_CLASS_NAME(type(error)))
    outcome = _not_ok(item, bench, kind, name, _text_of(error), seconds)
    return outcome if own_fault else outcome._replace(traceback=_traceback_of(error))


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
