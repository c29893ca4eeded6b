"""`batchmill try`: run a step on one input, in this process."""

import faulthandler
import json as json_text
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

from rich.table import Table

from batchmill.cli.console import console, print_json
from batchmill.cli.options import Json, Params, ParamsFile, Place, Step, check_given
from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.outcome import Outcome, visible
from batchmill.core.sizes import counted, readable_size
from batchmill.core.user_step.load import load_step
from batchmill.core.user_step.params import parse_pairs, parse_params
from batchmill.runs.inputs.single_input import run_single_input
from batchmill.runs.workers.memory_usage import resident_bytes, used_bytes
from batchmill.runs.workers.processes import ChildProcess, children

SHOWN_ROWS = 20
FAILED = 1
_CHECK_SECONDS = 0.1
_DUMP_SIGNAL = signal.SIGUSR1
_NO_LIMITS = FailurePolicy(timeout=0)


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
    timeout: float = 0.0,
    memory_limit: str = "",
    json: Json = False,
) -> int:
    """Run a step on one input in this process, without Prefect and Ray, and show its result.

    You can use a debugger. If the step crashes or ends the process, the command ends with a
    message.

    ```
    batchmill try recording.flac --step batchmill.steps.audio:split --param seconds=2 --keep clips
    ```

    Args:
        input: The input: the path or URL of one file.
        row: Value of another manifest column: key=value. Repeatable.
        input_kind: folder if the input is a folder with all of its files.
        file: Further file of the input: column=path, as with run --file-columns. column= for an
            empty cell. Repeatable.
        keep: New or empty folder for the files that the step writes. Default: they are deleted.
        timeout: Seconds for the input, with the time to fetch it. Then the stack of the step is
            printed, and the command ends. 0: no limit.
        memory_limit: Maximum memory for the input, for example 2G. Above that, the command ends.
            Default: no limit.
    """
    check_given(step=step)
    place = str(input)
    limits = FailurePolicy(timeout=timeout, memory_limit=memory_limit)
    columns = parse_pairs(row, "--row", "label=dog")
    pairs = parse_pairs(file, "--file", "mask=a_mask.png")
    files = {column: str(path) for column, path in pairs.items()}
    with _stdout_to_stderr() if json else nullcontext():
        with _watched(place):
            step_params = parse_params(param, params, step)
            loaded = load_step(step, step_params, search=os.getcwd(), file_columns=[*files])
        is_folder = input_kind == "folder"
        with _watched(place, limits):
            outcome = run_single_input(loaded, place, columns, keep, files, is_folder=is_folder)
    if json:
        print_json(_as_json(outcome))
    else:
        _show(outcome, keep)
    return 0 if outcome.kind == "ok" else FAILED


@contextmanager
def _watched(input: str, limits: FailurePolicy = _NO_LIMITS) -> Iterator[None]:
    """Kill this process if it exceeds a limit during the block, and print why it has ended.

    A process that ends by `os._exit` or a crash can print nothing, so a second process does.
    """
    pid = os.getpid()
    try:
        this_process = os.pidfd_open(pid)
    except OSError:  # A system without this call. There is no message and no limit.
        yield
        return
    faulthandler.register(_DUMP_SIGNAL, file=2)
    watcher = os.fork()
    if watcher == 0:
        try:
            # Ctrl-C also reaches this process.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            reason = _reason_of_end(pid, this_process, limits)
            os.write(2, f"{visible(input)}: {reason}\n".encode())
        finally:
            os._exit(0)
    os.close(this_process)
    try:
        yield
    finally:
        os.kill(watcher, signal.SIGKILL)
        os.waitpid(watcher, 0)


def _reason_of_end(pid: int, handle: int, limits: FailurePolicy) -> str:
    """Wait for the end of the parent process, or kill it above a limit. Return the reason."""
    wait = select.poll()
    wait.register(handle, select.POLLIN)
    begun, before = time.monotonic(), resident_bytes(pid)
    seconds, limit = limits.timeout_seconds, limits.memory_bytes
    while not wait.poll(1000 * _CHECK_SECONDS):
        used = used_bytes(pid, before, limit) if limit else 0
        if limit and used > limit:
            reason = f"used {readable_size(used)} of memory (--memory-limit)."
        elif seconds and time.monotonic() - begun > seconds:
            signal.pidfd_send_signal(handle, _DUMP_SIGNAL)
            time.sleep(_CHECK_SECONDS)  # It prints its stack.
            reason = f"still running after {seconds:g} s (--timeout)."
        else:
            continue
        signal.pidfd_send_signal(handle, signal.SIGSTOP)  # It starts no further process.
        for child in set(children(pid)) - {os.getpid()}:
            ChildProcess(child, parent=pid).kill_tree()
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        return reason
    return (
        "the process of the step ended before the step returned. A step must not call os._exit. "
        "Other causes: a crash, a signal, or too little memory."
    )


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
            lines = [list(pair) for pair in zip(keys, *lines, strict=True)]
            keys = ["column", "value"]
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
