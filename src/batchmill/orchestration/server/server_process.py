"""The process of the temporary Prefect server. It ends when no other process uses the server.

    python -m batchmill.orchestration.server.server_process PORT

Each process that uses the server holds a shared lock on `users.lock`. The kernel releases the lock
when that process ends, even if it is killed. If the server gets the exclusive lock, no process uses
the server, and it ends. It keeps the lock until then, so a new process waits and then starts
another server. The process that started the server also uses it until it closes the other end of
the server's stdin.

The process first does its imports, which take most of the start. It waits for one byte on stdin
before it writes anything. If stdin ends without this byte, no server is needed.
"""

import fcntl
import gc
import json
import os
import secrets
import select
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    import uvicorn

# RECORD contains the URL of the running server, PASSWORD the credentials that its API requires.
HOST, ANY_PORT = "127.0.0.1", 0
# The folder of the temporary server in PREFECT_HOME.
FOLDER = "batchmill"
USERS_LOCK, SERVER_LOCK = "users.lock", "server.lock"
RECORD, LOG, PASSWORD = "server.json", "server.log", "password"
# Exit code if the process is not needed: another one serves, or a server is configured. uvicorn
# itself ends a process with 3 if its application cannot start.
NOT_NEEDED = 100
_LOOK_SECONDS = 0.02
_LOCK_TRIES = 25


def folder_in(home: Path) -> Path:
    """Create the folder of the temporary server in PREFECT_HOME, and return it."""
    # Prefect uses the same mode, because other users must not read its database.
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = home / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def auth_string(folder: Path) -> str:
    """Return the credentials of the temporary server, as USER:PASSWORD. Create them if needed.

    Without them, each user of this machine could read saved secrets and cancel runs.

    Args:
        folder: The folder of the temporary server.
    """
    path = folder / PASSWORD
    if not path.exists():
        # Another process or thread may do the same. The link has complete content, and only one
        # succeeds.
        new = folder / f"{PASSWORD}.{secrets.token_hex(8)}"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w") as file:
            file.write(f"batchmill:{secrets.token_urlsafe(24)}")
        with suppress(FileExistsError):
            os.link(new, path)
        new.unlink()
    return path.read_text()


def serve(port: int) -> int:
    """Serve until no process uses the server. Return the exit code of this process."""
    # The imports make a million objects that live until the end. To search them for garbage takes a
    # fifth of the start.
    gc.disable()
    os.umask(0o077)  # The database has saved secrets, and the user's folder may be readable by all.
    # Only Prefect's settings show whether a server is configured. Their import takes as long as
    # the import of all of Prefect, which a server needs anyway.
    from prefect.settings import PREFECT_API_URL, PREFECT_HOME

    if PREFECT_API_URL.value():
        return NOT_NEEDED
    # An error is raised again by `_serve`, which has a log.
    with suppress(Exception):
        import prefect.server.api.server  # noqa: F401
        import uvicorn  # noqa: F401
    if not os.read(sys.stdin.fileno(), 1):
        return NOT_NEEDED
    folder = folder_in(PREFECT_HOME.value())
    with (folder / SERVER_LOCK).open("a+") as server, (folder / USERS_LOCK).open("a+") as users:
        if not _lock(server):
            return NOT_NEEDED
        with (folder / LOG).open("wb") as log:
            os.dup2(log.fileno(), sys.stdout.fileno())
            os.dup2(log.fileno(), sys.stderr.fileno())
        try:
            with bound_socket(port) as bound:
                has_started = _serve(folder, users, bound)
        finally:
            (folder / RECORD).unlink(missing_ok=True)
    return 0 if has_started else 1


def try_lock(file: IO[str], kind: int = fcntl.LOCK_EX) -> bool:
    """Lock a file. Return False if another process holds a lock that excludes it."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock(server: IO[str]) -> bool:
    """Get the lock of the only server. Return False if another server holds it."""
    # Other processes take the lock for a moment to check for a server.
    for _ in range(_LOCK_TRIES):
        if try_lock(server):
            return True
        time.sleep(_LOOK_SECONDS)
    return False


def _serve(folder: Path, users: IO[str], bound: socket.socket) -> bool:
    import uvicorn
    from prefect import settings
    from prefect.server.api.server import create_app

    port = bound.getsockname()[1]
    values = {
        settings.PREFECT_API_URL: f"http://{HOST}:{port}/api",
        settings.PREFECT_SERVER_API_AUTH_STRING: auth_string(folder),
        settings.PREFECT_API_AUTH_STRING: auth_string(folder),
        # Without it, the UI looks for its API on port 4200.
        settings.PREFECT_SERVER_API_PORT: port,
        # One transaction for each task run gave `database is locked` at 1,000 task runs.
        settings.PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE: 100,
        # Prefect truncates this to an integer. With 0, it uses a whole core.
        settings.PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL: 1,
        settings.PREFECT_SERVER_ANALYTICS_ENABLED: False,
        # Deployments and automations need a permanent server. Without these services, the start
        # takes an eighth less processor time.
        settings.PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED: False,
        settings.PREFECT_SERVER_SERVICES_LATE_RUNS_ENABLED: False,
        settings.PREFECT_SERVER_SERVICES_FOREMAN_ENABLED: False,
        settings.PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED: False,
    }
    with settings.temporary_settings(values):
        server = uvicorn.Server(uvicorn.Config(create_app(final=True), host=HOST, port=port))
        watcher = threading.Thread(target=_watch, args=(server, folder, users, port), daemon=True)
        watcher.start()
        server.run(sockets=[bound])
        return server.started


def _watch(server: "uvicorn.Server", folder: Path, users: IO[str], port: int) -> None:
    """Record the URL of the server once it has started. End it when no process uses it."""
    while not server.started:
        if server.should_exit:
            return
        time.sleep(_LOOK_SECONDS)
    new = folder / f"{RECORD}.new"
    new.write_text(json.dumps({"url": f"http://{HOST}:{port}/api", "pid": os.getpid()}))
    new.rename(folder / RECORD)
    gc.freeze()
    gc.enable()
    # The starter uses the server until it closes stdin. It writes nothing there.
    select.select([sys.stdin], [], [])
    fcntl.flock(users, fcntl.LOCK_EX)  # Waits until no process uses the server.
    server.should_exit = True


def bound_socket(port: int) -> socket.socket:
    """Return a socket at a port. Nothing responds there until uvicorn listens.

    uvicorn would bind the port seconds later, when another program may use it.
    """
    bound = socket.socket()
    if port != ANY_PORT:
        # Without it, a connection that just ended blocks the port.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((HOST, port))
    return bound


if __name__ == "__main__":
    sys.exit(serve(int(sys.argv[1])))
