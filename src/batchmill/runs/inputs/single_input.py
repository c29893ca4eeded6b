"""Runs a step on one input in this process, for `batchmill try`."""

import faulthandler
import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any

from batchmill.core.digests import input_id
from batchmill.core.layout import FILES
from batchmill.core.outcome import Outcome
from batchmill.core.security.allowlist import check_input
from batchmill.core.storage import LocalStore, is_url, remote
from batchmill.core.storage.remote import FileStat
from batchmill.core.storage.scratch import scratch_folder
from batchmill.core.urls import copy_name, is_web, last_part, one_slash_fault
from batchmill.core.user_step.load import Step
from batchmill.errors import OptionError
from batchmill.runs.inputs.call_step import make_dataset
from batchmill.runs.inputs.failed_outcomes import hide_in
from batchmill.runs.inputs.read_input import reads_in_parts
from batchmill.runs.inputs.run_input import execute_input
from batchmill.runs.inputs.staging import Companion, Input, StagingArea, open_staging


def run_single_input(
    step: Step,
    place: str,
    row: dict[str, Any],
    keep: Path | None,
    companions: Mapping[str, str] = MappingProxyType({}),
    *,
    is_folder: bool = False,
) -> Outcome:
    """Run a step on one file in this process, without limits.

    Args:
        step: The step.
        place: The path or URL of the file, or the path of a folder.
        row: The manifest's other columns for this input.
        keep: The folder to copy the step's files to; None discards the files.
        companions: The paths or URLs of the input's companions, by column. Empty: no file.
        is_folder: True if the input is a folder.

    Returns:
        The outcome. Its output paths are relative to the step's folder `out`.

    Raises:
        OptionError: The file does not exist, or the step cannot run on a single file.
    """
    step.check_input_kind(is_folder=is_folder)
    place, keep = os.path.expanduser(place), keep and keep.expanduser()
    companions = {column: os.path.expanduser(other) for column, other in companions.items()}
    stats = {column: _stat(other) for column, other in companions.items() if other}
    if is_folder and not os.path.isdir(place):
        raise OptionError(f"{place}: no such folder. Check the path. It cannot be a URL.")
    stat = None if is_folder else _stat(place)
    if keep and keep.exists() and not keep.is_dir():
        raise OptionError(f"--keep {keep}: is a file. Name a folder.")
    if keep and keep.exists() and any(keep.iterdir()):
        raise OptionError(f"--keep {keep}: contains files. Name a new or empty folder.")
    if place != place.encode(errors="replace").decode():
        raise OptionError(f"{place}: its name is not UTF-8. Rename the file.")
    if step.kind == "items":
        raise OptionError(
            f"step {step.ref}: has one item per manifest row, so it cannot run on a single file. "
            "Test its items in Python."
        )
    with (
        scratch_folder() as folder,
        open_staging(LocalStore(folder), "try", fetches=any((stat, *stats.values()))) as staging,
    ):
        name = last_part(place)
        item = Input(
            name,
            input_id(name),
            row=row,
            companions={
                column: Companion(
                    other, **_placed(other, f"{staging.fetched}/{column}", stats[column])
                )
                if other
                else None
                for column, other in companions.items()
            },
            is_folder=is_folder,
            in_parts=step.opens_input and reads_in_parts(place, stat),
            **_placed(place, f"{staging.fetched}/input", stat),
        )
        with suppress(ValueError):  # Standard error may not be a file.
            faulthandler.enable()
        with _ctrl_c_ends_command():
            outcome = execute_input(step, item, staging, partial(_load_item, step, item, staging))
        outcome = relative_to_own_folder(outcome)
        if keep and outcome.outputs:
            (made,) = (folder / FILES).iterdir()
            shutil.copytree(made, keep, dirs_exist_ok=True)
    return hide_in(outcome)


def _stat(place: str) -> FileStat | None:
    """Return size, time and ETag of an input by URL; None for a path. Raises OptionError."""
    fault = one_slash_fault(place)
    if fault:
        raise OptionError(fault)
    check_input(place)
    if is_url(place):
        remote.check_url(place)
        remote.check_bucket(place)
        if is_web(place):
            return remote.stat_if_allowed(place) or remote.UNREACHABLE
        stat = remote.stat(place)
        if stat is None:
            raise OptionError(f"{place}: no such file. Check the URL.")
        return stat
    if os.path.isdir(place):
        raise OptionError(f"{place}: is a folder. Name one file in it, or add --input-kind folder.")
    if not os.path.isfile(place):
        raise OptionError(f"{place}: no such file. Check the path.")
    return None


def _placed(place: str, folder: str, stat: FileStat | None) -> dict[str, Any]:
    """Return the local path of a file. If it is remote, also its URL and its state."""
    if stat is None:
        return {"path": os.path.abspath(place)}
    return {"path": f"{folder}/{copy_name(place)}", "url": place, "planned": stat}


@contextmanager
def _ctrl_c_ends_command() -> Iterator[None]:
    """Raise KeyboardInterrupt after the block if the user pressed Ctrl-C.

    A KeyboardInterrupt that the step itself raises becomes the input's outcome instead.
    """
    pressed: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        pressed.append(number)
        signal.default_int_handler(number, frame)

    try:
        before = signal.signal(signal.SIGINT, interrupt)
    except ValueError:  # Only the main thread may set a handler.
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed:
            raise KeyboardInterrupt


def _load_item(step: Step, item: Input, staging: StagingArea) -> Any:
    dataset = make_dataset(step, [item])
    if not step.is_batched:
        return dataset[0]
    from batchmill.runs.inputs.batch_runner import BatchRunner  # Imports torch.

    runner = BatchRunner(step=step, torch_dataset=dataset, inputs=[item], staging=staging)
    return runner.execute_one(0)


def relative_to_own_folder(outcome: Outcome) -> Outcome:
    """Make the paths of files relative to the step's folder instead of the dataset."""
    if not outcome.outputs:
        return outcome
    # The folder's name has a hash of the files, so no other text in the rows contains it.
    folder = outcome.outputs[0].path.removeprefix(f"{FILES}/").partition("/")[0]
    place = f"{FILES}/{folder}/"
    files = tuple(f._replace(path=f.path.removeprefix(place)) for f in outcome.outputs)
    return outcome._replace(rows=outcome.rows.replace(place, ""), outputs=files)
