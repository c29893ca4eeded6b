"""Open the ledger of a dataset by the path or URL that a user gives."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from batchmill.core.layout import LEDGER_FOLDER, PLAN
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.security.allowlist import check_dataset
from batchmill.core.storage import is_url, open_store, remote
from batchmill.core.storage.objects import unwritable
from batchmill.core.urls import absolute, shown_url
from batchmill.errors import OptionError


def open_output(output: str) -> Ledger:
    """Open the ledger of an output, which may not exist yet.

    Args:
        output: The path of the folder, or the URL.

    Raises:
        OptionError: The output contains other files, or cannot be used.
        LedgerError: The version of the ledger is unknown.
        StoreError: The output cannot be read.
    """
    ledger = _ledger_at(output, "--output ")
    if ledger.check_version():
        _check_links(ledger)
        return ledger
    if is_url(output):
        with ThreadPoolExecutor(2) as pool:
            file, names = pool.submit(remote.stat, output), pool.submit(ledger.store.names, "")
            remote.check_bucket(output)
        is_file, entries = bool(file.result()), names.result()
    else:
        is_file = os.path.isfile(output)
        entries = [] if is_file else ledger.store.names("")
    if is_file:
        raise OptionError(f"--output {output}: is a file. Name a folder.")
    _check_not_inside(output)
    if any(name != LEDGER_FOLDER for name in entries):
        raise OptionError(
            f"--output {output}: contains files, but is not a dataset. Name a new or empty folder."
        )
    return ledger


def _ledger_at(place: str, option: str = "") -> Ledger:
    """Return the ledger at a path or URL that an option names. Raises OptionError."""
    check_dataset(place)
    fault = unwritable(place) if is_url(place) else ""
    if fault:
        raise OptionError(f"{option}{shown_url(place)}: {fault}")
    return Ledger(open_store(place))


def _check_links(ledger: Ledger) -> None:
    """Raise OptionError if an entry of the dataset's top folder or of its ledger is a link."""
    for folder in ("", LEDGER_FOLDER):
        for name in ledger.store.links(folder):
            place = ledger.store.url_of(f"{folder}/{name}" if folder else name)
            raise OptionError(
                f"{place}: is a link. A run writes and removes files there, so a dataset contains "
                "no links. Replace the link with a copy of its target."
            )


def _check_not_inside(output: str) -> None:
    """Raise OptionError for an output inside another dataset.

    Verification of the outer dataset would report the files as unknown.
    """
    for above in () if is_url(output) else Path(os.path.abspath(output)).parents:
        if os.path.isdir(above / LEDGER_FOLDER):
            raise OptionError(
                f"--output {output}: is inside the dataset {above}. A dataset contains only the "
                "files of its own runs. Name another folder."
            )


def open_ledger(dataset: str) -> Ledger:
    """Open the ledger of an existing dataset.

    Args:
        dataset: The path of the folder, or the URL.

    Raises:
        OptionError: The folder or URL is not a dataset.
        LedgerError: The version of the ledger is unknown.
        StoreError: The dataset cannot be read.
    """
    place = absolute(dataset)
    ledger = _ledger_at(place)
    if not is_url(place) and not os.path.exists(place):
        raise OptionError(f"{dataset}: there is no such folder. Check the path.")
    if not ledger.check_version():
        if is_url(place):
            remote.check_bucket(place)
        raise OptionError(
            f"{dataset}: is not a dataset (it has no {LEDGER_FOLDER} folder). Check the path."
        )
    _check_links(ledger)
    return ledger


def last_run(ledger: Ledger, dataset: str) -> int:
    """Return the number of a dataset's last run.

    Args:
        ledger: The ledger of the dataset.
        dataset: The path or URL, for the message.

    Raises:
        OptionError: The dataset has no run.
    """
    # A run that was killed while it was planned has a folder, but no plan.
    for run in reversed(ledger.runs()):
        if ledger.store.exists(f"{ledger.run_folder(run)}/{PLAN}"):
            return run
    raise OptionError(f"{dataset}: the dataset has no run yet. Start a run with batchmill run.")
