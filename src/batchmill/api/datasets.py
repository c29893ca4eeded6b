"""List failures, release failed inputs, verify a dataset, or try a step on one file."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from batchmill.execution.single_input import run_single_input
from batchmill.jobs.failed_inputs import failure_table, release_failures
from batchmill.ledger.open import open_ledger
from batchmill.maintenance.verify import Difference, examine
from batchmill.outcome import Outcome
from batchmill.step.load import load_step, reference_to

_DIFFERENCE_COLUMNS = ["kind", "path", "input", "message"]


def failures(
    dataset: str | os.PathLike[str], *inputs: str, kind: Sequence[str] = ()
) -> pd.DataFrame:
    """Return the inputs of a dataset that are not ok, one row each.

    Args:
        dataset: The dataset's folder or URL.
        *inputs: Only these inputs.
        kind: Only these outcomes, for example ["crashed", "oom"].

    Returns:
        The columns input, outcome, error, message, traceback, log, attempts and more.

    Raises:
        OptionError: There is no such dataset, input or outcome.
    """
    place = os.fspath(dataset)
    table = failure_table(open_ledger(place), place, inputs, _kinds(kind))
    frame: pd.DataFrame = table.to_pandas()
    return frame


def retry(dataset: str | os.PathLike[str], *inputs: str, kind: Sequence[str] = ()) -> list[str]:
    """Release failed inputs: the next run executes them.

    Args:
        dataset: The dataset's folder or URL.
        *inputs: Only these inputs. Default: all failed inputs.
        kind: Only these outcomes, for example ["crashed", "oom"].

    Returns:
        The names of the released inputs.

    Raises:
        OptionError: There is no such dataset, input or outcome.
        LedgerError: A run is using the dataset.
    """
    return release_failures(os.fspath(dataset), inputs, _kinds(kind))


def verify(
    dataset: str | os.PathLike[str], *, hash: bool = False, repair: bool = False
) -> pd.DataFrame:
    """Compare a dataset's files with its ledger.

    Args:
        dataset: The dataset's folder or URL.
        hash: Read all outputs and compare their contents, not only their sizes.
        repair: Release the inputs of missing or changed files, and remove unreferenced files.

    Returns:
        One row per difference: kind, path, input, message. The table is empty if the dataset
        matches its ledger.

    Raises:
        OptionError: There is no such dataset.
        LedgerError: A run is using the dataset.
    """
    found: list[Difference] = examine(
        open_ledger(os.fspath(dataset)), hash_files=hash, repair=repair
    )
    rows = [asdict(difference) for difference in found]
    return pd.DataFrame(rows, columns=_DIFFERENCE_COLUMNS)


def try_one(
    input: str | os.PathLike[str],
    step: str | Callable[..., Any],
    *,
    params: Mapping[str, Any] | None = None,
    row: Mapping[str, Any] | None = None,
    keep: str | os.PathLike[str] | None = None,
) -> Outcome:
    """Run a step on one input in this process, without Prefect and Ray.

    You can use a debugger. There is no time or memory limit. If the step crashes, this process
    ends.

    Args:
        input: One file: a path or URL.
        step: Function or class, or its reference package.module:attribute.
        params: The step's keyword arguments.
        row: Other columns of the manifest.
        keep: Folder for the files that the step writes. Default: they are deleted.

    Returns:
        The outcome: kind, seconds, rows, files, error, traceback.

    Raises:
        OptionError: There is no such file.
        StepError: The step cannot be loaded, or does not accept these params.
    """
    loaded = load_step(reference_to(step), dict(params or {}), search=os.getcwd())
    return run_single_input(loaded, os.fspath(input), dict(row or {}), Path(keep) if keep else None)


def _kinds(kind: Sequence[str]) -> tuple[str, ...]:
    return (kind,) if isinstance(kind, str) else tuple(kind)
