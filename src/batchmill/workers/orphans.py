"""Ends the processes that steps have started if the process of their shard is killed."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from batchmill.workers import orphan_watcher

_VARIABLE = "BATCHMILL_SHARD_PROCESS"


@contextmanager
def ending_orphans() -> Iterator[None]:
    """Mark the processes that start during the block. If this process is killed, they end.

    The kernel ends the workers, but not the processes that their steps have started.
    """
    mark = uuid.uuid4().hex
    watcher = subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-S",
            orphan_watcher.__file__,
            str(os.getpid()),
            f"{_VARIABLE}={mark}",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # A signal to the process group of the run must not end the watcher.
        start_new_session=True,
    )
    os.environ[_VARIABLE] = mark
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE, None)
        watcher.communicate(b".")  # Ends the watcher.
