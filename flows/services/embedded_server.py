"""One temporary Prefect server for all runs on this machine that have none of their own.

Prefect would start one in every process. This one is shared by all, keeps its history in the user's
Prefect database, and stops when the last run has ended.
"""

import fcntl
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from batchmill.flows.services.server_process import (
    ANY_PORT,
    LOG,
    NOT_NEEDED,
    RECORD,
    SERVER_LOCK,
    USERS_LOCK,
    folder_in,
)

from batchmill.errors import ServiceError

# The first start on a machine makes the database, which took 13 to 19 s on two cores.
_START_SECONDS = 180
_STOP_SECONDS = 20
_POLL_SECONDS = 0.05

# What `starting_server` has begun to start.
_begun: list[subprocess.Popen[bytes]] = []


@contextmanager
def starting_server() -> Iterator[None]:
    """Begin to start the temporary server, which takes seconds, before Prefect is imported.

    `embedded_server` within the block finds it. Does nothing where the environment names a server.
    The process that is started knows whether a settings file does; then it ends by itself.
    """
    if os.environ.get("PREFECT_API_URL"):
        yield
        return
    process = _start_process(ANY_PORT)
    _begun.append(process)
    try:
        yield
    finally:
        _begun.remove(process)
        _let_go(process)


@contextmanager
def embedded_server(home: Path, port: int = ANY_PORT) -> Iterator[str]:
    """Give the API URL of a server that lives at least as long as the block.

    `home` is Prefect's folder (PREFECT_HOME), which has the database. A server that has to be
    started serves at `port`. Raises ServiceError.
    """
    folder = folder_in(home)
    with (folder / USERS_LOCK).open("a+") as users:
        # Waits for the end of a server that is about to end.
        fcntl.flock(users, fcntl.LOCK_SH)
        for process in _begun:
            _let_go(process)  # From now on, the lock says that it is used.
        yield _find(folder) or _start(folder, port)
    # The next command may well be `prefect server start`: two at once lose records.
    _wait_for_end(folder)


def find_server(home: Path) -> str | None:
    """Return the API URL of the temporary server that runs; None if none does."""
    return _find(folder_in(home))


def _find(folder: Path) -> str | None:
    try:
        url: str = json.loads((folder / RECORD).read_text())["url"]
    except (OSError, ValueError):
        return None
    return url if _is_healthy(url) else None


def _start(folder: Path, port: int) -> str:
    """Start a server, unless one is starting, and wait for it. Returns its URL."""
    deadline = time.monotonic() + _START_SECONDS
    process = _begun[-1] if _begun else None
    try:
        while not (url := _find(folder)):
            failed = process is not None and process.poll() not in (None, NOT_NEEDED)
            if failed or time.monotonic() > deadline:
                raise ServiceError(_start_failure(folder))
            if (process is None or process.poll() is not None) and not _is_locked(folder):
                process = _start_process(port)
            time.sleep(_POLL_SECONDS)
    finally:
        if process:
            _let_go(process)
    return url


def _start_process(port: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "batchmill.flows.services.server_process", str(port)],
        # Its end is the process's sign that we are gone.
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Ctrl-C in the terminal is for the run, which needs the server to end well.
        start_new_session=True,
    )


def _let_go(process: subprocess.Popen[bytes]) -> None:
    """Be no longer the one for whom a server runs; others may use it still."""
    if process.stdin:
        process.stdin.close()
    process.poll()


def _start_failure(folder: Path) -> str:
    log = folder / LOG
    last = log.read_text(errors="replace").strip().splitlines()[-5:] if log.exists() else []
    return (
        f"The temporary Prefect server did not start; its log is {log}. It ends with:\n  "
        + "\n  ".join(last or ["(nothing)"])
        + "\nOr start one yourself: prefect server start, and set PREFECT_API_URL to its address."
    )


def _wait_for_end(folder: Path) -> None:
    """Wait for the end of the server, unless somebody else uses it."""
    deadline = time.monotonic() + _STOP_SECONDS
    with (folder / USERS_LOCK).open("a+") as users:
        while _is_locked(folder) and time.monotonic() < deadline:
            # Locked for a moment only: the server ends once it has the lock for itself.
            if not _try_lock(users, fcntl.LOCK_EX) and _try_lock(users, fcntl.LOCK_SH):
                return
            fcntl.flock(users, fcntl.LOCK_UN)
            time.sleep(_POLL_SECONDS)


def _try_lock(file: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_locked(folder: Path) -> bool:
    """Tell whether there is a server process, which may still be starting, or be about to end."""
    with (folder / SERVER_LOCK).open("a+") as server:
        return not _try_lock(server, fcntl.LOCK_EX)


def _is_healthy(url: str) -> bool:
    try:
        # A proxy that the environment names is not asked for an address of this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
