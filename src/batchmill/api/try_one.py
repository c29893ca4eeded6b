"""Try a step on one input."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from batchmill.api.keywords import python_call
from batchmill.core.outcome import WrittenFile, one_line
from batchmill.core.planning.job import plain_params
from batchmill.core.sizes import counted
from batchmill.core.user_step.value.shipping import load_given_step
from batchmill.runs.inputs.single_input import run_single_input

_SHOWN_ROWS, _SHOWN_CHARACTERS = 3, 200


@dataclass(frozen=True, kw_only=True, repr=False)
class TryResult:
    """The result of a step on one input.

    Attributes:
        input: The input.
        kind: The outcome: "ok", or for example "failed".
        seconds: How long the step ran.
        rows: The rows that the step returned.
        files: The files that the step wrote: path, size and content hash.
        error: The type of the exception. Empty if the input is ok.
        message: The text of the exception.
        traceback: The traceback of the exception.
        log: The last lines that the step printed.
    """

    input: str
    kind: str
    seconds: float
    rows: Sequence[dict[str, Any]]
    files: Sequence[WrittenFile]
    error: str
    message: str
    traceback: str
    log: str

    def __repr__(self) -> str:
        text = f"{self.input}: {self.kind} in {self.seconds:.3f} s"
        if self.kind != "ok":
            reason = self.traceback.rstrip() or one_line(self.error, self.message)
            return f"{text}\n{reason}"
        counts = f"{counted(len(self.rows), 'row')}, {counted(len(self.files), 'file')}"
        shown = [f"  {row}"[:_SHOWN_CHARACTERS] for row in self.rows[:_SHOWN_ROWS]]
        more = ["  ..."] if len(self.rows) > _SHOWN_ROWS else []
        return "\n".join([f"{text}, {counts}", *shown, *more])


@python_call
def try_one(
    input: str | os.PathLike[str],
    step: str | Callable[..., Any],
    *,
    params: Mapping[str, Any] | None = None,
    row: Mapping[str, Any] | None = None,
    input_kind: Literal["file", "folder"] = "file",
    files: Mapping[str, str | os.PathLike[str] | None] | None = None,
    keep: str | os.PathLike[str] | None = None,
) -> TryResult:
    """Run a step on one input in this process, without Prefect and Ray.

    You can use a debugger. There is no time or memory limit. If the step crashes, this process
    ends.

    Args:
        input: One file: a path or URL.
        step: Function or class, or its reference package.module:attribute.
        params: The step's keyword arguments.
        row: Other columns of the manifest.
        input_kind: "folder" if the input is a folder with all of its files.
        files: The input's further files by column, as `file_columns` of `run` gives them. None for
            an empty cell.
        keep: New or empty folder for the files that the step writes. Default: they are deleted.

    Returns:
        The result: kind, seconds, rows, files, error, traceback.

    Raises:
        OptionError: There is no such file, or a parameter cannot be written as JSON.
        StepError: The step cannot be loaded, or does not accept these params.
    """
    others = {column: os.fspath(path or "") for column, path in (files or {}).items()}
    plain = plain_params(params or {})
    loaded = load_given_step(step, plain, search=os.getcwd(), file_columns=[*others])
    place, folder = os.fspath(input), Path(keep) if keep else None
    is_folder = input_kind == "folder"
    outcome = run_single_input(loaded, place, dict(row or {}), folder, others, is_folder=is_folder)
    known = outcome._asdict() | {"rows": json.loads(outcome.rows), "files": [*outcome.outputs]}
    return TryResult(**{field.name: known[field.name] for field in fields(TryResult)})
