"""Creates outcomes that are not ok, from an exception or from the death of a process."""

import math
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from batchmill.core.failure_causes import is_library
from batchmill.core.outcome import LONGEST_RETRY_AFTER, Kind, Outcome, OverdueError, text_of
from batchmill.core.security.redaction import without_secrets
from batchmill.core.storage.local import has_room, remove_folder
from batchmill.core.storage.store import NO_ROOM
from batchmill.core.storage.store_errors import FULL
from batchmill.core.user_step.declared_rows import RowTypeError
from batchmill.errors import RetryAfter, StoreError
from batchmill.runs.inputs.outputs import OutputError
from batchmill.runs.inputs.staging import CONFINED_FOLDERS, Input, StagingArea, discard
from batchmill.runs.workers.worker_exit import WorkerExit

_RUNS = Path(__file__).parents[1]
_ENGINE = tuple(str(_RUNS / name) for name in ("inputs", "workers", "shards"))
_MAX_TEXT = 64 * 1024
# A disk with this much free space is not full. One input can still write more than this.
_AMPLE_BYTES = 64 * 2**20
_CLASS_NAME: Callable[[type], str] = type.__dict__["__name__"].__get__


class MissingError(FileNotFoundError):
    """The input does not exist."""


class UnreadPartError(Exception):
    """The store failed while the step read a part of its input, or the input changed.

    Attributes:
        fault: The error of the store.
    """

    def __init__(self, fault: StoreError) -> None:
        super().__init__(str(fault))
        self.fault = fault


class ReportedError(Exception):
    """A confined process reported a failure of the step.

    Attributes:
        fields: The names of the outcome's fields that the process reports.
    """

    fields = ("kind", "error", "message", "traceback", "retry_after")

    def __init__(
        self, kind: str, error: str, message: str, traceback: str, retry_after: Any = 0.0
    ) -> None:
        super().__init__(message)
        # The process runs the step's code, so its report may have any content.
        self.kind: Kind = "cancelled" if kind == "cancelled" else "failed"
        self.error, self.message = printable(str(error)), printable(str(message))
        self.traceback, self.retry_after = printable(str(traceback)), _seconds(retry_after)


def failure_of(
    item: Input, staging: StagingArea, error: BaseException, seconds: float, *, ours: bool
) -> Outcome:
    """Return the outcome of an input for which `error` was raised.

    Args:
        item: The input.
        staging: The folders of this attempt.
        error: The exception.
        seconds: How long the attempt took.
        ours: True if the engine's code raised the error, False if the step did.
    """
    if isinstance(error, UnreadPartError):
        ours, error = True, error.fault
    if ours and isinstance(error, MissingError):
        missing = outcome_of(item, staging, "missing", "FileNotFoundError", str(error), seconds)
        return missing._replace(attempts=0)
    if isinstance(error, ReportedError):
        # The process runs the step's code, so the report that the disk is full is checked.
        is_full = error.kind == "cancelled" and _full_folders(staging)
        kind: Kind = "cancelled" if is_full else "failed"
        reported = outcome_of(item, staging, kind, error.error, error.message, seconds)
        return reported._replace(traceback=error.traceback, retry_after=error.retry_after)
    if full := _full_disk(item, staging, error):
        return outcome_of(item, staging, "cancelled", "StoreError", full, seconds)
    if ours and isinstance(error, StoreError):
        is_general = error.passing or error.general or isinstance(error.__cause__, PermissionError)
        kind = "cancelled" if is_general else "failed"
        return outcome_of(item, staging, kind, "StoreError", str(error), seconds)
    if isinstance(error, OverdueError):
        overdue = outcome_of(item, staging, "timeout", "Timeout", str(error), seconds)
        stack = _traceback_of(error.__cause__) if error.__cause__ else ""
        return overdue._replace(traceback=stack, unclear=error.unclear)
    # `_CLASS_NAME` reads the real name: a class may override `__class__` and `__name__`.
    name = printable(_CLASS_NAME(type(error)))
    outcome = outcome_of(item, staging, "failed", name, printable(text_of(error)), seconds)
    pauses = [_seconds(refusal.seconds) for refusal in _refusals_in(error)]
    outcome = outcome._replace(retry_after=max(pauses, default=0.0))
    if outcome.retry_after > LONGEST_RETRY_AFTER:
        limit = f"The longest pause is {LONGEST_RETRY_AFTER:,.0f} s, so this run does not retry it."
        outcome = outcome._replace(message=f"{outcome.message}. {limit}")
    if _is_fault_of_code(error):
        outcome = outcome._replace(retry_after=math.inf)  # The next attempt would fail, too.
    if isinstance(error, RetryAfter | OutputError | RowTypeError):
        return outcome
    return outcome._replace(traceback=_traceback_of(error))


def _is_fault_of_code(error: BaseException) -> bool:
    """Return whether an error shows that a module of the user is wrong, so each input fails."""
    is_in_code = isinstance(error, NameError | ImportError | SyntaxError) or (
        isinstance(error, AttributeError) and isinstance(error.obj, ModuleType)
    )
    frames = (frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__))
    # The frames of an import are frozen.
    files = [file for file in frames if not file.startswith("<frozen")] if is_in_code else []
    return bool(files) and not is_library(files[-1])


def _refusals_in(error: BaseException) -> list[RetryAfter]:
    """Return each RetryAfter that a step raised, also in a group."""
    if isinstance(error, BaseExceptionGroup):
        return [refusal for one in error.exceptions for refusal in _refusals_in(one)]
    return [error] if isinstance(error, RetryAfter) else []


def _seconds(pause: Any) -> float:
    """Return a pause. The step may have set any value."""
    try:
        return max(0.0, float(pause))
    except (TypeError, ValueError, OverflowError):
        return 0.0


def _full_disk(item: Input, staging: StagingArea, error: BaseException | None = None) -> str:
    """Return a message if a full disk, and not the input, caused a failure; otherwise "".

    Before it looks for ample space, it removes the input's files. A full disk can cause any error,
    and a library may have removed its incomplete file. If the disk has ample space without this
    input's files, then this input has filled the disk itself.
    """
    if all(map(has_room, _folders(staging))) and not _is_no_room(error):
        return ""
    _remove_files(item, staging)
    full = _full_folders(staging)
    return f"{full[0]}: {NO_ROOM}" if full else ""


def _folders(staging: StagingArea) -> list[Path]:
    return [folder for folder in (staging.folder, staging.fetched) if folder]


def _full_folders(staging: StagingArea) -> list[Path]:
    """Return the folders of an attempt that do not have ample space."""
    return [folder for folder in _folders(staging) if not has_room(folder, _AMPLE_BYTES)]


def _remove_files(item: Input, staging: StagingArea) -> None:
    """Remove the files that a step has written. Each worker of a confined step has a folder."""
    for folder in (staging.folder, *staging.folder.glob(CONFINED_FOLDERS)):
        remove_folder(folder / item.input_id)


def _is_no_room(error: BaseException | None) -> bool:
    """Return whether an exception, or one that it comes from, says that the disk is full."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OSError) and error.errno in FULL:
            return True
        error = error.__cause__ or error.__context__
    return False


def outcome_of(
    item: Input, staging: StagingArea, kind: Kind, error: str, message: str, seconds: float
) -> Outcome:
    """Return an outcome of this `kind`, after one attempt. With `ok`, the texts are empty."""
    return Outcome(
        input=item.name,
        input_id=item.input_id,
        kind=kind,
        attempts=1,
        seconds=seconds,
        finished_at=time.time(),
        host=staging.host,
        error=error,
        message=message,
    )


def lost(item: Input, staging: StagingArea, end: WorkerExit) -> Outcome:
    """Return the outcome of an input whose process died, and remove the input's files."""
    outcome = outcome_of(item, staging, end.kind, end.error, end.message, end.seconds)
    if full := _full_disk(item, staging):
        outcome = outcome._replace(kind="cancelled", error="StoreError", message=full)
    _remove_files(item, staging)
    discard(item)
    return outcome._replace(log=printable(end.log))


def hide_in(outcome: Outcome) -> Outcome:
    """Return a failed outcome without the credentials in its texts; an `ok` outcome as it is."""
    if outcome.kind == "ok":
        return outcome
    return outcome._replace(
        message=without_secrets(outcome.message),
        traceback=without_secrets(outcome.traceback),
        log=without_secrets(outcome.log),
    )


def _traceback_of(error: BaseException) -> str:
    """Format a traceback without the engine's frames before the step's first frame."""
    try:
        frames = _step_frames(error.__traceback__)
        if frames is None and error.__cause__ is None:
            return ""  # The engine rejected the step's result. The message is enough.
        return printable("".join(traceback.format_exception(type(error), error, frames)))
    except BaseException as fault:
        return f"{type(error).__name__} (no traceback: formatting raised {type(fault).__name__})"


def _step_frames(frames: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame outside the engine; None if all are inside."""
    while frames and os.path.dirname(frames.tb_frame.f_code.co_filename) in _ENGINE:
        frames = frames.tb_next
    return frames


def printable(text: str) -> str:
    """Shorten a text, and replace characters that files or tables do not accept."""
    if len(text) > _MAX_TEXT:
        half = _MAX_TEXT // 2
        gap = f"... {len(text) - _MAX_TEXT} characters left out ..."
        text = "\n".join([text[:half], gap, text[-half:]])
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
