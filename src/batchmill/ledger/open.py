"""A dataset by the name that a user gives it: its ledger, to write to or to look at."""

import os
from pathlib import Path

from batchmill.allowlist import check_dataset
from batchmill.errors import OptionError
from batchmill.ledger.ledger import FOLDER, Ledger
from batchmill.storage import is_url, open_store, remote
from batchmill.storage.objects import unwritable
from batchmill.storage.urls import absolute, parent, shown_url


def open_output(output: str) -> Ledger:
    """Return the ledger of an output folder or URL, which may not be there yet.

    Raises OptionError for one that holds something else or cannot be used, LedgerError for an
    unknown version, StoreError.
    """
    check_dataset(output)
    if is_url(output):
        fault = unwritable(output)
        if fault:
            raise OptionError(f"--output {shown_url(output)}: {fault}")
    ledger = Ledger(open_store(output))
    if ledger.exists:
        ledger.check_version()
        return ledger
    if is_url(output):
        if remote.look(output):
            raise OptionError(f"--output {output}: is a file. Name a folder.")
    else:
        _check_folder(output)
    _check_not_inside(output)
    if any(name != FOLDER for name in ledger.store.names("")):
        raise OptionError(
            f"--output {output}: holds files that are not a dataset's. Name a new or empty folder."
        )
    return ledger


def _check_not_inside(output: str) -> None:
    """Raise OptionError for what would be a part of another dataset: nothing of that is named."""
    above = parent(output)
    while above and above != parent(above):
        if not is_url(above) and os.path.isdir(os.path.join(above, FOLDER)):
            raise OptionError(
                f"--output {output}: lies in the dataset {above}, which has only what its own runs "
                "write. Name another folder."
            )
        above = parent(above)


def _check_folder(output: str) -> None:
    folder = Path(output)
    if folder.exists() and not folder.is_dir():
        raise OptionError(f"--output {output}: is a file. Name a folder.")
    nearest = folder
    while not nearest.exists():
        nearest = nearest.parent
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise OptionError(
            f"--output {output}: {nearest} cannot be written to. "
            "Give yourself the right, or name another folder."
        )


def open_ledger(dataset: str) -> Ledger:
    """Return the ledger of a dataset that is there. Raises OptionError where there is none."""
    place = absolute(dataset)
    check_dataset(place)
    fault = unwritable(place) if is_url(place) else ""
    if fault:
        raise OptionError(f"{shown_url(place)}: {fault}")
    ledger = Ledger(open_store(place))
    if not ledger.exists:
        raise OptionError(f"{dataset}: is no dataset (it has no {FOLDER} folder). Check the path.")
    ledger.check_version()
    return ledger


def last_run(ledger: Ledger, dataset: str) -> int:
    """Return the number of a dataset's last run. Raises OptionError where there is none."""
    runs = ledger.runs()
    if not runs:
        raise OptionError(f"{dataset}: no run has been planned there yet. Run batchmill run.")
    return runs[-1]
