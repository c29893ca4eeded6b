"""`batchmill try`: run a step on one input, in this process."""

import json as json_text
import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

from rich.table import Table

from batchmill.cli.console import console, print_json
from batchmill.cli.options import Json, Params, ParamsFile, Place, Step, check_given
from batchmill.execution.single_input import run_single_input
from batchmill.outcome import Outcome, visible
from batchmill.sizes import counted
from batchmill.step.load import load_step
from batchmill.step.params import parse_pairs, parse_params

SHOWN_ROWS = 20
FAILED = 1


def try_one(
    input: Place,
    /,
    *,
    step: Step = "",
    param: Params = (),
    params: ParamsFile = None,
    row: tuple[str, ...] = (),
    input_kind: Literal["file", "folder"] = "file",
    file: tuple[str, ...] = (),
    keep: Path | None = None,
    json: Json = False,
) -> int:
    """Run a step on one input in this process, without Prefect and Ray, and show its result.

    You can use a debugger. There is no time or memory limit. If the step crashes or ends the
    process, the command ends with a message.

    ```
    batchmill try recording.flac --step batchmill.steps.audio:split --param seconds=2 --keep clips
    ```

    Args:
        input: The input: the path or URL of one file.
        row: Value of another manifest column: key=value. Repeatable.
        input_kind: folder if the input is a folder with all of its files.
        file: Further file of the input: column=path, as with run --file-columns.
            Repeatable.
        keep: New or empty folder for the files that the step writes. Default: they are deleted.
    """
    check_given(step=step)
    columns = parse_pairs(row, "--row", "label=dog")
    pairs = parse_pairs(file, "--file", "mask=a_mask.png")
    files = {column: str(path) for column, path in pairs.items()}
    ended = (
        f"{visible(str(input))}: the process of the step ended before the step returned. A step "
        "must not call os._exit. Other causes: a crash, a signal, or too little memory."
    )
    with _reporting_process_end(ended), _stdout_to_stderr() if json else nullcontext():
        loaded = load_step(
            step, parse_params(param, params), search=os.getcwd(), file_columns=[*files]
        )
        is_folder = input_kind == "folder"
        outcome = run_single_input(loaded, str(input), columns, keep, files, is_folder=is_folder)
    if json:
        print_json(_as_json(outcome))
    else:
        _show(outcome, keep)
    return 0 if outcome.kind == "ok" else FAILED


@contextmanager
def _reporting_process_end(message: str) -> Iterator[None]:
    """Print a message to standard error if this process ends during the block.

    A process that ends by `os._exit` or a crash cannot print it, so a second process does.
    """
    try:
        this_process = os.pidfd_open(os.getpid())
    except OSError:  # A system without this call. The message is left out.
        yield
        return
    watcher = os.fork()
    if watcher == 0:
        try:
            _print_at_end(this_process, message)
        finally:
            os._exit(0)
    os.close(this_process)
    try:
        yield
    finally:
        os.kill(watcher, signal.SIGKILL)
        os.waitpid(watcher, 0)


def _print_at_end(process: int, message: str) -> None:
    """Wait for the end of a process, and print the message."""
    # Ctrl-C also reaches this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wait = select.poll()
    wait.register(process, select.POLLIN)
    wait.poll()
    os.write(2, f"{message}\n".encode())


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Send to standard error what a step, or a process of a step, writes to standard output."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _as_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "input": outcome.input,
        "outcome": outcome.kind,
        "seconds": outcome.seconds,
        # Standard JSON has neither NaN nor infinity.
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
        if outcome.error == "SystemExit":
            out.print(
                "The step called sys.exit or exit. Let it return its rows, or raise an exception."
            )
        return
    rows = json_text.loads(outcome.rows)
    if not rows:
        out.print("0 rows")
    else:
        keys = list(dict.fromkeys(key for row in rows for key in row))
        lines = [[_cell(row.get(key)) for key in keys] for row in rows[:SHOWN_ROWS]]
        if len(rows) == 1:  # A line for each value, since many columns are unreadable.
            keys, lines = (
                ["column", "value"],
                [list(pair) for pair in zip(keys, *lines, strict=True)],
            )
        table = Table(*keys, title=counted(len(rows), "row"), title_justify="left")
        for line in lines:
            table.add_row(*line)
        out.print(table, soft_wrap=False)
        if len(rows) > SHOWN_ROWS:
            out.print(f"... and {len(rows) - SHOWN_ROWS:,} more (to see all: --json)")
    size = sum(file.size for file in outcome.outputs)
    kept = f"kept in {keep}" if keep else "deleted (to keep them: --keep FOLDER)"
    if outcome.outputs:
        out.print(f"{counted(len(outcome.outputs), 'file')}, {size:,} bytes, {kept}")


def _cell(value: object) -> str:
    if value is None:
        return ""
    return visible(value) if isinstance(value, str) else json_text.dumps(value)
