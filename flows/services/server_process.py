"""The process of the temporary Prefect server, which serves as long as somebody uses it.

    python -m batchmill.flows.services.server_process PORT

Its users hold a shared lock on `users.lock`. The kernel gives up the lock of a process that dies,
however it dies; so when this process gets the lock for itself, nobody is left, and it ends. Until
it has ended, it keeps the lock: who comes then waits, and starts another server. Whoever has
started this process is a user as long as it holds the other end of stdin.
"""

import fcntl
import json
import os
import select
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import uvicorn

# It serves at one of these, and says in RECORD which.
HOST, ANY_PORT = "127.0.0.1", 0
USERS_LOCK, SERVER_LOCK = "users.lock", "server.lock"
RECORD, LOG = "server.json", "server.log"
# Exit code of a process that is not needed: another one serves, or a server is configured.
NOT_NEEDED = 3
_LOOK_SECONDS = 0.05
_LOCK_TRIES = 10


def folder_in(home: Path) -> Path:
    """Make the folder of the temporary server in Prefect's (PREFECT_HOME), and return it."""
    # As Prefect itself makes it: its database is nobody else's to read.
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = home / "batchmill"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def serve(port: int) -> int:
    """Serve until nobody uses the server; returns the process's exit code."""
    # The settings of Prefect's tell whether a server is needed. To import them takes as long as
    # importing all of Prefect, which a server needs anyway.
    from prefect.settings import PREFECT_API_URL, PREFECT_HOME

    if PREFECT_API_URL.value():
        return NOT_NEEDED
    folder = folder_in(PREFECT_HOME.value())
    with (folder / SERVER_LOCK).open("a+") as server, (folder / USERS_LOCK).open("a+") as users:
        if not _lock(server.fileno()):
            return NOT_NEEDED
        with (folder / LOG).open("wb") as log:
            os.dup2(log.fileno(), sys.stdout.fileno())
            os.dup2(log.fileno(), sys.stderr.fileno())
        try:
            has_started = _serve(folder, users.fileno(), port or _free_port())
        finally:
            (folder / RECORD).unlink(missing_ok=True)
    return 0 if has_started else 1


def _lock(server: int) -> bool:
    """Become the one server; False if there is one. Others may look for a moment whether it is."""
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(server, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOOK_SECONDS)
        else:
            return True
    return False


def _serve(folder: Path, users: int, port: int) -> bool:
    import uvicorn
    from prefect import settings
    from prefect.server.api.server import create_app

    values = {
        settings.PREFECT_API_URL: f"http://{HOST}:{port}/api",
        # Without it, the UI looks for its API on port 4200.
        settings.PREFECT_SERVER_API_PORT: port,
        # One transaction for each task run gave `database is locked` at 1,000 task runs.
        settings.PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE: 100,
        # Prefect drops what is behind the point: 0.5 is 0, for which it burns a core.
        settings.PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL: 1,
        settings.PREFECT_SERVER_ANALYTICS_ENABLED: False,
    }
    with settings.temporary_settings(values):
        server = uvicorn.Server(uvicorn.Config(create_app(final=True), host=HOST, port=port))
        watcher = threading.Thread(target=_watch, args=(server, folder, users, port), daemon=True)
        watcher.start()
        server.run()
        return server.started


def _watch(server: "uvicorn.Server", folder: Path, users: int, port: int) -> None:
    """Say where the server is once it has started; have it end when nobody uses it."""
    is_recorded, has_starter = False, True
    while not server.should_exit:
        if server.started and not is_recorded:
            new = folder / f"{RECORD}.new"
            new.write_text(json.dumps({"url": f"http://{HOST}:{port}/api", "pid": os.getpid()}))
            new.rename(folder / RECORD)
            is_recorded = True
        if has_starter:
            # Nothing is written there: it is ready when its other end is closed.
            has_starter = not select.select([sys.stdin], [], [], _LOOK_SECONDS)[0]
            continue
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            server.should_exit = True
        except BlockingIOError:
            time.sleep(_LOOK_SECONDS)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(serve(int(sys.argv[1])))
