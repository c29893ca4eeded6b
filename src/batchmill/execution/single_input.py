"""A step on one input, in this process: what `batchmill try` does."""

import faulthandler
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from batchmill.allowlist import refused_inputs
from batchmill.digests import input_id
from batchmill.errors import OptionError
from batchmill.execution.run_input import execute, make_dataset
from batchmill.execution.staging import Input, StagingArea, open_staging
from batchmill.outcome import Outcome
from batchmill.step.load import Step
from batchmill.storage import FILES, LocalStore, is_url, remote
from batchmill.storage.remote import FileStat
from batchmill.storage.urls import last_part


def run_single_input(step: Step, place: str, row: dict[str, Any], keep: Path | None) -> Outcome:
    """Run a step on one file in this process, without limits; files are kept in `keep`.

    Paths of outputs are relative to the step's own folder. Raises OptionError if there is no such
    file, or the step cannot run on a single file.
    """
    stat = _stat(place)
    if keep and keep.exists() and not keep.is_dir():
        raise OptionError(f"--keep {keep}: is a file. Name a folder.")
    with (
        tempfile.TemporaryDirectory(prefix="batchmill-") as folder,
        open_staging(LocalStore(folder), "try", fetches=stat is not None) as staging,
    ):
        item = _input(place, row, staging, stat)
        load_item = _item_loader(step, item, staging)
        with suppress(ValueError):  # Standard error may not be a file.
            faulthandler.enable()
        with _ctrl_c_ends_command():
            outcome = execute(step, item, staging, load_item)
        outcome = _relative_to_own_folder(outcome)
        if keep and outcome.outputs:
            shutil.copytree(Path(folder, FILES, item.input_id), keep, dirs_exist_ok=True)
    return outcome


def _stat(place: str) -> FileStat | None:
    """Return what a store says about an input by URL; None for a path. Raises OptionError."""
    for refused in refused_inputs([place]).values():
        raise OptionError(refused)
    if is_url(place):
        remote.check_url(place)
        remote.check_bucket(place)
        stat = remote.stat(place)
        if stat is None and place.startswith(("http://", "https://")):
            return FileStat(-1, remote.UNKNOWN_TIME, None)  # Fetching it will show more.
        if stat is None:
            raise OptionError(f"{place}: no such file. Check the URL.")
        return stat
    if not os.path.isfile(place):
        what = "is a folder; name one file of it" if os.path.isdir(place) else "no such file"
        raise OptionError(f"{place}: {what}. Check the path.")
    return None


def _input(place: str, row: dict[str, Any], staging: StagingArea, stat: FileStat | None) -> Input:
    name = last_part(place)
    if stat is None:
        return Input(name, input_id(name), os.path.abspath(place), row)
    return Input(name, input_id(name), f"{staging.fetched}/input/{name}", row, place, stat)


class _Interrupt:
    """A handler of Ctrl-C that remembers whether it was called."""

    def __init__(self) -> None:
        self.was_pressed = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.was_pressed = True
        signal.default_int_handler(number, frame)


@contextmanager
def _ctrl_c_ends_command() -> Iterator[None]:
    """Distinguish a Ctrl-C from a KeyboardInterrupt that the step raises: that is its outcome."""
    interrupt = _Interrupt()
    try:
        before = signal.signal(signal.SIGINT, interrupt)
    except ValueError:  # Only the main thread may set a handler.
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if interrupt.was_pressed:
            raise KeyboardInterrupt


def _item_loader(step: Step, item: Input, staging: StagingArea) -> Callable[[], Any]:
    if step.kind == "items":
        raise OptionError(
            f"step {step.ref}: has one item per row of a manifest, so it cannot be tried on a "
            "single file. Look at its items in Python."
        )
    if step.is_batched:
        from batchmill.execution.batch_runner import BatchRunner  # Imports torch.

        return lambda: BatchRunner.over(step, [item], staging).execute_one(0)
    return lambda: make_dataset(step, [item])[0]


def _relative_to_own_folder(outcome: Outcome) -> Outcome:
    """Name files as the step does, not as a dataset would."""
    inside = f"{FILES}/{outcome.input_id}/"
    rows = json.loads(outcome.rows)
    for row in rows:
        if row.get("output"):
            row["output"] = row["output"].removeprefix(inside)
    files = tuple(f._replace(path=f.path.removeprefix(inside)) for f in outcome.outputs)
    return outcome._replace(rows=json.dumps(rows), outputs=files)
