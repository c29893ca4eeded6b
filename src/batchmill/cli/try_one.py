"""`batchmill try`: a step on one input, in this process."""

import faulthandler
import json as json_text
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

from cyclopts import Parameter
from rich.table import Table

from batchmill.allowlist import refused_inputs
from batchmill.cli.console import console
from batchmill.cli.options import Json, Params, ParamsFile, Step
from batchmill.digests import input_id
from batchmill.errors import OptionError
from batchmill.execution.run_input import execute, make_dataset
from batchmill.execution.staging import Input, StagingArea, open_staging
from batchmill.outcome import Outcome
from batchmill.step.load import Step as LoadedStep
from batchmill.step.load import load_step
from batchmill.step.params import parse_params
from batchmill.storage import FILES, LocalStore, is_url, remote
from batchmill.storage.remote import FileStat
from batchmill.storage.urls import last_part

SHOWN_ROWS = 20
FAILED = 1


def try_one(
    input: Annotated[str, Parameter(help="One file.")],
    /,
    *,
    step: Step,
    param: Params = (),
    params: ParamsFile = None,
    row: Annotated[
        tuple[str, ...],
        Parameter(
            negative=(),
            show_default=False,
            help="Another column of the manifest, key=value; may be repeated.",
        ),
    ] = (),
    keep: Annotated[
        Path | None, Parameter(help="Folder to keep the files in that the step writes.")
    ] = None,
    json: Json = False,
) -> int:
    """Run a step on one input, here and now, without Prefect and Ray; show what it gives.

    In this process, so that a debugger works: without limits, and what crashes it ends the command.

    ```
    batchmill try recording.flac --step batchmill.steps.audio:split --param seconds=2 --keep clips
    ```
    """
    planned = _look(input)
    if keep and keep.exists() and not keep.is_dir():
        raise OptionError(f"--keep {keep}: is a file. Name a folder.")
    loaded = load_step(step, parse_params(param, params), search=os.getcwd())
    with (
        tempfile.TemporaryDirectory(prefix="batchmill-") as folder,
        open_staging(LocalStore(folder), "try", fetches=planned is not None) as bench,
    ):
        item = _item(input, parse_params(row), bench, planned)
        look_up = _looking_up(loaded, item, bench)
        with suppress(ValueError):  # Standard error may be no file.
            faulthandler.enable()
        with _ctrl_c_ends_it():
            outcome = execute(loaded, item, bench, look_up)
        outcome = _in_own_folder(outcome)
        if keep and outcome.outputs:
            shutil.copytree(Path(folder, FILES, item.input_id), keep, dirs_exist_ok=True)
    if json:
        print(json_text.dumps(_as_json(outcome), ensure_ascii=False))
    else:
        _show(outcome, keep)
    return 0 if outcome.kind == "ok" else FAILED


def _look(place: str) -> FileStat | None:
    """Return what a store says of an input by URL, None of a path. Raises OptionError."""
    for refused in refused_inputs([place]).values():
        raise OptionError(refused)
    if is_url(place):
        remote.check_url(place)
        remote.check_bucket(place)
        seen = remote.look(place)
        if seen is None and place.startswith(("http://", "https://")):
            return FileStat(-1, remote.UNKNOWN_TIME, None)  # Fetching it will tell more.
        if seen is None:
            raise OptionError(f"{place}: no such file. Check the URL.")
        return seen
    if not os.path.isfile(place):
        what = "is a folder; name one file of it" if os.path.isdir(place) else "no such file"
        raise OptionError(f"{place}: {what}. Check the path.")
    return None


def _item(place: str, row: dict[str, Any], bench: StagingArea, planned: FileStat | None) -> Input:
    name = last_part(place)
    if planned is None:
        return Input(name, input_id(name), os.path.abspath(place), row)
    return Input(name, input_id(name), f"{bench.fetched}/input/{name}", row, place, planned)


@contextmanager
def _ctrl_c_ends_it() -> Iterator[None]:
    """Tell a Ctrl-C from a KeyboardInterrupt that a step raises, which is its outcome."""
    pressed = False

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        signal.default_int_handler(number, frame)

    before = signal.signal(signal.SIGINT, press)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed:
            raise KeyboardInterrupt


def _looking_up(step: LoadedStep, item: Input, bench: StagingArea) -> Callable[[], Any]:
    if step.kind == "items":
        raise OptionError(
            f"step {step.ref}: has an item for each row of a manifest, and cannot be tried "
            "on a file. Look at its items in Python."
        )
    if step.is_batched:
        from batchmill.execution.batch_runner import BatchRunner  # Brings torch along.

        return lambda: BatchRunner.over(step, [item], bench).execute_one(0)
    return lambda: make_dataset(step, [item])[0]


def _in_own_folder(outcome: Outcome) -> Outcome:
    """Name files as the step does, not as a dataset would."""
    inside = f"{FILES}/{outcome.input_id}/"
    rows = json_text.loads(outcome.rows)
    for row in rows:
        if row.get("output"):
            row["output"] = row["output"].removeprefix(inside)
    files = tuple(f._replace(path=f.path.removeprefix(inside)) for f in outcome.outputs)
    return outcome._replace(rows=json_text.dumps(rows), outputs=files)


def _as_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "input": outcome.input,
        "outcome": outcome.kind,
        "seconds": outcome.seconds,
        # JSON proper has no NaN and no infinity.
        "rows": json_text.loads(outcome.rows, parse_constant=lambda _: None),
        "files": [{"path": file.path, "size": file.size} for file in outcome.outputs],
        "error": outcome.error,
        "message": outcome.message,
        "traceback": outcome.traceback,
    }


def _show(outcome: Outcome, keep: Path | None) -> None:
    out = console()
    out.print(f"{outcome.input}: {outcome.kind} in {outcome.seconds:.3f} s")
    if outcome.kind != "ok":
        out.print(outcome.traceback or outcome.reason)
        return
    rows = json_text.loads(outcome.rows)
    if not rows:
        out.print("0 rows")
    else:
        keys = list(dict.fromkeys(key for row in rows for key in row))
        table = Table(*keys, title=_count(len(rows), "row"), title_justify="left")
        for row in rows[:SHOWN_ROWS]:
            table.add_row(*[_cell(row.get(key)) for key in keys])
        out.print(table, soft_wrap=False)
        if len(rows) > SHOWN_ROWS:
            out.print(f"... and {len(rows) - SHOWN_ROWS:,} more (all of them: --json)")
    size = sum(file.size for file in outcome.outputs)
    kept = f"kept in {keep}" if keep else "not kept (--keep FOLDER does)"
    if outcome.outputs:
        out.print(f"{_count(len(outcome.outputs), 'file')}, {size:,} bytes, {kept}")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _cell(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else json_text.dumps(value)
