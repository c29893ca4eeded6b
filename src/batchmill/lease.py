"""One writer for each dataset: a lock on a file in it, which the kernel gives up for the dead."""

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from batchmill.errors import LedgerError
from batchmill.ledger import FOLDER

_LOCK = "lock"


@contextmanager
def lease(dataset: Path) -> Iterator[None]:
    """Hold a dataset for as long as the block; raises LedgerError if somebody else holds it."""
    with (dataset / FOLDER / _LOCK).open("a+") as file:
        if not _locked(file):
            raise LedgerError(_message(dataset, _who(file)))
        file.truncate(0)
        since = time.strftime("%Y-%m-%d %H:%M:%S %Z")
        file.write(f"process {os.getpid()} on {socket.gethostname()}, since {since}")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def holder(dataset: Path) -> str | None:
    """Say who holds a dataset; None if nobody does."""
    try:
        with (dataset / FOLDER / _LOCK).open("a+") as file:
            return None if _locked(file) else _who(file)
    except OSError:
        return None


def check_free(dataset: Path) -> None:
    """Raise LedgerError if somebody holds a dataset."""
    who = holder(dataset)
    if who:
        raise LedgerError(_message(dataset, who))


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _who(file: IO[str]) -> str:
    file.seek(0)
    return file.read() or "another process"


def _message(dataset: Path, who: str) -> str:
    return f"{dataset}: a run is going on there ({who}). Wait for its end, or stop it."
