"""A process that runs a Prefect server for as long as somebody uses it.

    python -m batchmill.flows.services.server_keeper FOLDER PORT

Users hold a shared lock on `users.lock`. The kernel gives up the lock of a process that dies,
however it dies; so when the keeper gets the lock for itself, nobody is left, and it stops the
server. While it stops, it keeps the lock, and whoever comes then waits and starts a new one.
"""

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

LOCK = "users.lock"
RECORD = "server.json"
_POLL_SECONDS = 0.2
_STOP_SECONDS = 15
_PR_SET_PDEATHSIG = 1


def keep(folder: Path, port: int) -> None:
    """Run a Prefect server on loopback until nobody holds the lock in `folder`."""
    with (folder / LOCK).open("r+") as lock:
        server = subprocess.Popen(
            [sys.executable, "-P", "-m", "prefect", "server", "start", *_address(port)],
            env=_environment(port),
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )
        while server.poll() is None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_POLL_SECONDS)
                continue
            break
        server.terminate()
        try:
            server.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        (folder / RECORD).unlink(missing_ok=True)


def _address(port: int) -> list[str]:
    return ["--host", "127.0.0.1", "--port", str(port)]


def _environment(port: int) -> dict[str, str]:
    """Set what one server needs to keep up with many short task runs on SQLite."""
    return os.environ | {
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        # Without it, the UI looks for its API on port 4200.
        "PREFECT_SERVER_API_PORT": str(port),
        # One transaction for each task run gave `database is locked` at 1,000 task runs.
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
        # Prefect drops what is behind the point: 0.5 is 0, for which it burns a core.
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    }


def _die_with_parent() -> None:
    """Have the kernel end the server if the keeper is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    keep(Path(sys.argv[1]), int(sys.argv[2]))
