"""One temporary Prefect server for all runs on this machine, if no server is configured.

Prefect would start a server in every process. This server is shared by all processes, keeps its
history in the user's Prefect database, and stops when the last run has ended. A Python session can
keep it until the session ends.
"""

import atexit
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple, cast

from batchmill.errors import ServiceError
from batchmill.orchestration.server.server_process import (
    ANY_PORT,
    FOLDER,
    LOG,
    NOT_NEEDED,
    RECORD,
    SERVER_LOCK,
    USERS_LOCK,
    auth_string,
    folder_in,
    try_lock,
)

_SERVER_MODULE = "batchmill.orchestration.server.server_process"
# The first start on a machine creates the database. This took 13 to 19 s on two cores.
_START_SECONDS = 180
_STOP_SECONDS = 20
_POLL_SECONDS = 0.02
# Prefect's empty database takes 2 MB.
_LEAST_FREE_BYTES = 4 * 2**20
# The last line of a traceback, such as `OSError: no space`.
_ERROR_LINE = re.compile(r"[\w.]+(Error|Exception|Exit|Interrupt)\b")

# The server processes that `preparing_server` has started.
_begun: list["_StartedProcess"] = []
# The locks that keep servers running until this process ends, by folder.
_kept: dict[Path, IO[str]] = {}
_is_keeping = False


class TemporaryServer(NamedTuple):
    """The running temporary server.

    Attributes:
        url: The URL of its API.
        auth: The credentials that its API requires, as USER:PASSWORD.
    """

    url: str
    auth: str


def keep_servers() -> None:
    """Keep the temporary servers of this process until it ends, because its next run needs one.

    The kernel of the operating system releases the locks of a process that is killed.
    """
    global _is_keeping
    if not _is_keeping:
        _is_keeping = True
        atexit.register(_end_kept)


def _end_kept() -> None:
    folders = [*_kept]
    while _kept:
        # Closing the file in a forked process does not release the lock of its parent.
        _kept.popitem()[1].close()
    for folder in folders:
        with suppress(FileNotFoundError):  # A test may have deleted its folder.
            _wait_for_end(folder)


@contextmanager
def preparing_server() -> Iterator[None]:
    """Start the process of the temporary server. It does its imports, and writes nothing.

    The imports take seconds, also those of this process. `starting_server` and `embedded_server`
    in the block use this process. Otherwise it ends after the block. If the environment names a
    server, or one is running or starting, nothing is started. If a settings file names a server,
    the started process detects it and ends.
    """
    if _begun or has_server():
        yield
        return
    process = _StartedProcess(ANY_PORT)
    _begun.append(process)
    try:
        yield
    finally:
        _begun.remove(process)
        process.let_go()


@contextmanager
def starting_server() -> Iterator[None]:
    """Start the temporary server in the background, because the run needs it.

    `embedded_server` in the block waits for this server and uses it.
    """
    with preparing_server():
        for process in _begun:
            process.serve()
        yield


def has_server() -> bool:
    """Return whether a run of this process finds a server that is ready. Imports no Prefect.

    Prefect's settings files may name another server or home. They are not read here.
    """
    if os.environ.get("PREFECT_API_URL") or _kept:
        return True
    home = os.environ.get("PREFECT_HOME")
    folder = Path(home).expanduser() if home else Path.home() / ".prefect"
    return _find(folder / FOLDER) is not None


@contextmanager
def embedded_server(home: Path, port: int = ANY_PORT) -> Iterator[TemporaryServer]:
    """Yield a server that runs at least until the block ends.

    Args:
        home: Prefect's folder (PREFECT_HOME), which contains the database.
        port: The port of the server, if one has to be started.

    Raises:
        ServiceError: The server did not start.
    """
    folder = folder_in(home)
    with (folder / USERS_LOCK).open("a+") as users:
        # If a server is about to end, this call waits until it has ended.
        fcntl.flock(users, fcntl.LOCK_SH)
        url = _find(folder) or _start(folder, port)
        for process in _begun:
            process.let_go()  # From now on, the lock keeps the server running.
        if _is_keeping and folder not in _kept:
            _kept[folder] = (folder / USERS_LOCK).open("a+")
            fcntl.flock(_kept[folder], fcntl.LOCK_SH)
        yield TemporaryServer(url, auth_string(folder))
    if folder not in _kept:
        # The next command may be `prefect server start`. Two servers on one database lose records.
        _wait_for_end(folder)


def is_running(home: Path) -> bool:
    """Return whether the temporary server is running. A busy one may not respond for a while."""
    folder = folder_in(home)
    return (folder / RECORD).exists() and _is_locked(folder)


def _find(folder: Path) -> str | None:
    try:
        url: str = json.loads((folder / RECORD).read_text())["url"]
    except (OSError, ValueError):
        return None
    return url if _is_healthy(url) else None


def _start(folder: Path, port: int) -> str:
    """Start a server, unless one is starting already. Wait for it and return its URL."""
    deadline = time.monotonic() + _START_SECONDS
    process = _begun[-1] if _begun else None
    try:
        while not (url := _find(folder)):
            failed = process is not None and process.poll() not in (None, NOT_NEEDED)
            if failed or time.monotonic() > deadline:
                raise ServiceError(_start_failure(folder))
            if (process is None or process.poll() is not None) and not _is_locked(folder):
                process = _StartedProcess(port)
            if process is not None:
                process.serve()
            time.sleep(_POLL_SECONDS)
    finally:
        if process:
            process.let_go()
    return url


class _StartedProcess:
    """A server process that this process has started."""

    def __init__(self, port: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", _SERVER_MODULE, str(port)],
            # The server detects the end of this process when the pipe is closed.
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl-C in the terminal must not end the server: the run still needs it.
            start_new_session=True,
        )
        self._pipe = cast("IO[bytes]", self._process.stdin)
        self._is_needed = False

    def serve(self) -> None:
        """Let the process serve. Before, it only does its imports."""
        if self._pipe.closed or self._is_needed:
            return
        self._is_needed = True
        with suppress(BrokenPipeError):  # It has ended: a server is configured.
            self._pipe.write(b"1")
            self._pipe.flush()

    def let_go(self) -> None:
        """Stop using the process. It ends when no other process uses it."""
        with suppress(BrokenPipeError):
            self._pipe.close()
        self._process.poll()

    def poll(self) -> int | None:
        """Return the exit code. None if the process is running."""
        return self._process.poll()


def _start_failure(folder: Path) -> str:
    what = "The temporary Prefect server did not start"
    if shutil.disk_usage(folder).free < _LEAST_FREE_BYTES:
        return (
            f"{what}: the disk of {folder.parent} is full. Free some space, or set PREFECT_HOME to "
            "a folder on another disk."
        )
    log = folder / LOG
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    errors = [line for line in lines if _ERROR_LINE.match(line)]
    (reason,) = (errors or lines or ["it gave no reason"])[-1:]
    return (
        f"{what}: {reason}. Its log is {log}. Fix the cause, or run `prefect server start` and set "
        "PREFECT_API_URL to its address."
    )


def _wait_for_end(folder: Path) -> None:
    """Wait for the end of the server, unless another process uses it."""
    deadline = time.monotonic() + _STOP_SECONDS
    with (folder / USERS_LOCK).open("a+") as users:
        while _is_locked(folder) and time.monotonic() < deadline:
            # The lock is held only briefly: the server ends once it gets the exclusive lock.
            if not try_lock(users) and try_lock(users, fcntl.LOCK_SH):
                return
            fcntl.flock(users, fcntl.LOCK_UN)
            time.sleep(_POLL_SECONDS)


def _is_locked(folder: Path) -> bool:
    """Return whether a server process exists. It may still be starting, or be about to end."""
    with (folder / SERVER_LOCK).open("a+") as server:
        return not try_lock(server)


def _is_healthy(url: str) -> bool:
    # They import much, and a command without a server does not need them.
    import http.client
    import urllib.request

    try:
        # The server is on this machine, so the request must not use a configured proxy.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):
        return False  # After a crash of the server, another program may use its port.
