"""Calls the code of a step for one input, in this process or in a confined one."""

import json
import os
from collections.abc import AsyncIterable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

from batchmill.core.storage.fingerprints import Fingerprint
from batchmill.core.user_step.load import Step
from batchmill.errors import StepError
from batchmill.runs.inputs.failed_outcomes import ReportedError, failure_of
from batchmill.runs.inputs.read_input import opened
from batchmill.runs.inputs.result_rows import File, Row, as_row, encode_rows, rows_of
from batchmill.runs.inputs.staging import Input, StagingArea

# An input whose file was not read.
ABSENT = Fingerprint(size=-1, mtime_ns=0, content="")
_CONFINED = (
    "The step is confined (--confine). It may change files only in its output folder, in the "
    "temporary folder and in --allow-write, and connect only with --allow-network."
)


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


def call_step(
    step: Step, item: Input, staging: StagingArea, indexed: Callable[[], Any], seen: Fingerprint
) -> list[Row]:
    """Call the step, and return its rows. Its folder has been created.

    Args:
        step: The step.
        item: The input. Its files have been fetched.
        staging: The folders of this attempt.
        indexed: Returns the input's item of the step's torch Dataset. Not called if the step is a
            function.
        seen: The fingerprint of the input when it was read.
    """
    if step.kind != "function":
        return _checked(step, rows_of(indexed(), staging.reserved))
    with _source(step, item, seen) as source:
        return _checked(step, rows_of(_call(step, item, source, staging), staging.reserved))


async def await_step(step: Step, item: Input, staging: StagingArea, seen: Fingerprint) -> list[Row]:
    """Call an async step, as `call_step` calls others."""
    with _source(step, item, seen) as source:
        result = _call(step, item, source, staging)
        if isinstance(result, AsyncIterable):
            rows = [as_row(row, staging.reserved) async for row in result if row is not None]
        else:
            rows = rows_of(await result, staging.reserved)
        return _checked(step, rows)


def _source(step: Step, item: Input, seen: Fingerprint) -> AbstractContextManager[Path | BinaryIO]:
    return opened(item, seen) if step.opens_input else nullcontext(Path(item.path))


def _checked(step: Step, rows: list[Row]) -> list[Row]:
    if step.declared:
        step.declared.check(encode_rows(map(_without_files, rows)))
    return rows


def _without_files(row: Row) -> Row:
    """Return a row with the names of its files as text."""
    return {key: value.path if isinstance(value, File) else value for key, value in row.items()}


def _call(step: Step, item: Input, source: Path | BinaryIO, staging: StagingArea) -> Any:
    paths = {column: file and file.path for column, file in item.companions.items()}
    keywords: dict[str, Any] = {
        column: path and Path(path) for column, path in paths.items() if column in step.given
    }
    if "out" in step.given:
        keywords["out"] = staging.folder / item.input_id
    if "row" in step.given:
        keywords["row"] = {**item.row, **paths}
    return step.target(source, **keywords, **step.params)


def answer(step: Step, item: Input, staging: StagingArea, indexed: Callable[[], Any]) -> bytes:
    """Run `step` on one input in a confined process. `read_answer` reads the result.

    The arguments are those of `call_step`. Never raises.
    """
    pid = os.getpid()
    try:
        try:
            rows = call_step(step, item, staging, indexed, ABSENT)
        finally:
            end_if_forked(pid)
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
    decoded = json.loads(data)
    if "failure" in decoded:
        raise ReportedError(**decoded["failure"])
    rows: list[Row] = json.loads(decoded["rows"])
    for number, key, path in decoded.get("files", ()):
        rows[number][key] = File(path)
    return rows


def end_if_forked(pid: int) -> None:
    """End this process if the step forked it: only the original process may return."""
    if os.getpid() != pid:
        os._exit(0)
