"""The outcome of an input that is not ok, from what its step has raised or how it has ended."""

import os
import time
import traceback
from collections.abc import Callable
from types import TracebackType

from batchmill.errors import StoreError
from batchmill.execution.outputs import OutputError
from batchmill.execution.staging import Input, StagingArea
from batchmill.outcome import Kind, Outcome
from batchmill.storage import NO_ROOM
from batchmill.storage.local import has_room, remove_folder

_ENGINE = os.path.dirname(os.path.abspath(__file__))
_MAX_TEXT = 64 * 1024
_CLASS_NAME: Callable[[type], str] = type.__dict__["__name__"].__get__


class MissingError(FileNotFoundError):
    """There is no such input."""


class RefusedError(Exception):
    """The store does not give this one input to us."""


def failure_of(
    item: Input, bench: StagingArea, error: BaseException, seconds: float, *, ours: bool
) -> Outcome:
    """Make the outcome of an input with which something was raised; `ours`: not by the step."""
    if ours and isinstance(error, MissingError):
        missing = not_ok(item, bench, "missing", "FileNotFoundError", str(error), seconds)
        return missing._replace(attempts=0)
    if not has_room(bench.staging) or (bench.fetched and not has_room(bench.fetched)):
        # While what it has written is still there. For want of room anything may fail.
        return not_ok(item, bench, "cancelled", "StoreError", NO_ROOM, seconds)
    if ours and isinstance(error, StoreError):
        nobodys = error.passing or error.general or isinstance(error.__cause__, PermissionError)
        kind: Kind = "cancelled" if nobodys else "failed"
        return not_ok(item, bench, kind, "StoreError", str(error), seconds)
    if isinstance(error, RefusedError):
        return not_ok(item, bench, "failed", "StoreError", str(error), seconds)
    # Not error.__class__.__name__: a class may have a say in that.
    name = printable(_CLASS_NAME(type(error)))
    outcome = not_ok(item, bench, "failed", name, _text_of(error), seconds)
    if isinstance(error, OutputError):
        return outcome
    return outcome._replace(traceback=_traceback_of(error))


def not_ok(
    item: Input, bench: StagingArea, kind: Kind, error: str, message: str, seconds: float
) -> Outcome:
    """Make the outcome of an input after one attempt at it, of this `kind`."""
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
    bench: StagingArea,
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
    return not_ok(item, bench, kind, error, message, seconds)._replace(log=printable(log))


def _text_of(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException as fault:  # A step's exception may do anything, here too.
        text = f"(its text cannot be had: str() raised {type(fault).__name__})"
    return printable(text)


def _traceback_of(error: BaseException) -> str:
    """Format a traceback from the step's first line on; the way there is of no use to anybody."""
    try:
        frames = _step_frames(error.__traceback__)
        if frames is None and error.__cause__ is None:
            return ""  # It is batchmill that does not take what the step gave: the message says it.
        return printable("".join(traceback.format_exception(type(error), error, frames)))
    except BaseException as fault:
        return f"{type(error).__name__} (its traceback cannot be had: {type(fault).__name__})"


def _step_frames(frames: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame that is not batchmill's own."""
    while frames and os.path.dirname(frames.tb_frame.f_code.co_filename) == _ENGINE:
        frames = frames.tb_next
    return frames


def printable(text: str) -> str:
    """Bound a text, and replace what no file or table takes."""
    if len(text) > _MAX_TEXT:
        half = _MAX_TEXT // 2
        gap = f"... {len(text) - _MAX_TEXT} characters left out ..."
        text = "\n".join([text[:half], gap, text[-half:]])
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
