"""Folders of this machine for files on their way to or from a store."""

import fcntl
import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from batchmill.storage.local import remove_folder


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give an empty folder, gone after the block.

    What others have left there that were killed is removed, too: the kernel gives up their locks.
    """
    base = Path(tempfile.gettempdir()) / f"batchmill-scratch-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    _sweep(base)
    folder = base / uuid.uuid4().hex[:12]
    # Its lock is held before it can be found.
    with _locked(base / f".{folder.name}") as made:
        made.rename(folder)
        try:
            yield folder
        finally:
            remove_folder(folder)
            with suppress(OSError):  # Others have theirs there.
                base.rmdir()


@contextmanager
def _locked(folder: Path) -> Iterator[Path]:
    folder.mkdir(mode=0o700, parents=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield folder
    finally:
        os.close(descriptor)


def _sweep(base: Path) -> None:
    for entry in base.iterdir():
        with suppress(OSError):  # Somebody is there, or was quicker.
            descriptor = os.open(entry, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not entry.name.startswith("."):
                    remove_folder(entry)
            finally:
                os.close(descriptor)
