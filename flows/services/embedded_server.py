"""One temporary Prefect server for all runs on this machine that have none of their own.

Prefect would start one in every process, Ray workers included. This one is shared by all, keeps
its history in the user's Prefect database, and stops when the last run has ended.
"""

import fcntl
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from batchmill.flows.services.server_keeper import LOCK, RECORD

from batchmill.errors import ServiceError

# The first start on a machine makes the database, which took 13 to 19 s on two cores.
_START_SECONDS = 180
_STOP_SECONDS = 20
_POLL_SECONDS = 0.1
_LOG = "server.log"


@contextmanager
def embedded_server(home: Path) -> Iterator[str]:
    """Give the API URL of a server that lives at least as long as the block.

    `home` is Prefect's folder (PREFECT_HOME), which has the database. Raises ServiceError.
    """
    # As Prefect itself makes it: its database is nobody else's to read.
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = home / "batchmill"
    folder.mkdir(exist_ok=True)
    with (folder / LOCK).open("a+") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        yield _join(folder) or _start(folder)
        last = _nobody_else(users)
    if last:
        # The next command may well be `prefect server start`: two at once lose records.
        _wait_for_end(folder)


def _join(folder: Path) -> str | None:
    """Return the URL of the server that runs; None if none does."""
    record = _read_record(folder)
    return record["url"] if record and _is_healthy(record["url"]) else None


def _read_record(folder: Path) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = json.loads((folder / RECORD).read_text())
    except (OSError, ValueError):
        return None
    return record if record.keys() >= {"url", "pid"} else None


def _start(folder: Path) -> str:
    with (folder / "start.lock").open("a+") as starting:
        fcntl.flock(starting, fcntl.LOCK_EX)
        url = _join(folder)  # Somebody else may have started one meanwhile.
        if url:
            return url
        port = _free_port()
        url = f"http://127.0.0.1:{port}/api"
        with (folder / _LOG).open("wb") as log:
            keeper = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "batchmill.flows.services.server_keeper",
                    str(folder),
                    str(port),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C in the terminal is for the run, which needs the server to end well.
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_SECONDS
        while not _is_healthy(url):
            if keeper.poll() is not None or time.monotonic() > deadline:
                keeper.terminate()
                raise ServiceError(_start_failure(folder))
            time.sleep(_POLL_SECONDS)
        (folder / RECORD).write_text(json.dumps({"url": url, "pid": keeper.pid}))
        return url


def _start_failure(folder: Path) -> str:
    log = folder / _LOG
    last = log.read_text(errors="replace").strip().splitlines()[-5:]
    return (
        f"The temporary Prefect server did not start; its log is {log}. It ends with:\n  "
        + "\n  ".join(last or ["(nothing)"])
        + "\nOr start one yourself: prefect server start, and set PREFECT_API_URL to its address."
    )


def _nobody_else(users: IO[str]) -> bool:
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait_for_end(folder: Path) -> None:
    deadline = time.monotonic() + _STOP_SECONDS
    while (record := _read_record(folder)) and time.monotonic() < deadline:
        if not _is_alive(record["pid"]):
            return
        time.sleep(_POLL_SECONDS)


def _is_alive(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG) == (0, 0)
    except ChildProcessError:  # Another run's child.
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True


def _is_healthy(url: str) -> bool:
    try:
        # A proxy that the environment names is not asked for an address of this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
