"""Run commands, servers and processes for end-to-end tests."""

import fcntl
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from base64 import b64encode
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import SystemRandom

import psutil

ROOT = Path(__file__).parents[3]
SUPPORT = ROOT / "tests" / "support"
# The steps of tests. A test that runs them by reference has this folder in its import path.
STEP_MODULES = SUPPORT / "step_modules"
MARK = "BATCHMILL_TEST_MARK"
# The variable with the folder that all processes of a test run share.
RUN_FOLDER = "BATCHMILL_TEST_RUN_FOLDER"
_SERVER = "server.json"
START_SECONDS = 180
_BUSY_ANSWERS = 20


def wait_for(condition, what, seconds=60):
    """Poll until `condition` returns a true value; return it. After `seconds`, fail with `what`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.2)
    # A function describes the state after the wait.
    what = what() if callable(what) else what
    raise AssertionError(f"timeout after {seconds} s: {what}")


@contextmanager
def serving(server):
    """Run a server of the standard library in a thread until the block ends."""
    # `shutdown` waits for the end of a poll.
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def processes_marked(mark):
    """Return the processes with this mark in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


@dataclass
class Shell:
    """Run commands in a folder, with an environment that keeps the user's files unchanged."""

    folder: Path
    environment: dict[str, str]
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self):
        self.environment = self.environment | {MARK: self.mark}

    def start(self, *arguments, **options):
        return subprocess.Popen(
            [str(argument) for argument in arguments],
            cwd=self.folder,
            env=self.environment,
            text=True,
            **options,
        )

    def run(self, *arguments, timeout=300):
        process = self.start(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def batchmill(self, *arguments):
        return self.run(sys.executable, "-m", "batchmill", *arguments)

    def json(self, *arguments):
        done = self.batchmill(*arguments, "--json")
        return done.returncode, json.loads(done.stdout)

    def python(self, script):
        return self.run(sys.executable, "-c", script)

    def leftovers(self):
        return processes_marked(self.mark)


@contextmanager
def shell_in(folder, environment):
    """Yield a shell; at the end, fail if it left a process, and kill the process."""
    shell = Shell(folder, environment)
    try:
        yield shell
        # After a kill, the last processes of Ray can need more than a minute to end.
        wait_for(lambda: not shell.leftovers(), lambda: f"the end of {shell.leftovers()}", 180)
    finally:
        for process in shell.leftovers():
            process.kill()


def clean_environment(home):
    """Return an environment without settings of Prefect and Ray, with this Python's commands."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PREFECT_", "RAY_", "PYTEST_", "COV_"))
    }
    commands = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", "")])
    return kept | {"PREFECT_HOME": str(home), "PATH": commands, "COLUMNS": "200"}


def make_home(home):
    """Create a folder for Prefect (PREFECT_HOME) with a migrated database; return the folder.

    Prefect's migrations take 13 to 19 s. A test run does them once, and copies the database.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    shutil.copy(made_once("migrated", _migrate) / "prefect.db", home)
    return home


def made_once(name, make):
    """Return a folder that `make(folder)` fills once for all processes of a test run."""
    run = Path(os.environ[RUN_FOLDER])
    folder = run / name
    with (run / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            new = run / f"{name}.new"
            new.mkdir(mode=0o700)
            make(new)
            new.rename(folder)
    return folder


def _migrate(home):
    command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "-y"]
    subprocess.run(command, env=clean_environment(home), check=True, capture_output=True)
    with closing(sqlite3.connect(home / "prefect.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def free_ports(host="127.0.0.1", count=1):
    """Return `count` different free ports.

    Linux uses none of them for a connection, so they are still free when a server binds them.
    """
    found = []
    for port in SystemRandom().sample(range(20_000, 32_768), 1000):
        with suppress(OSError), socket.socket() as probe:
            probe.bind((host, port))
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError("no free port")


def ask(api_url, path, body=None, method=None, password=None):
    """Call a Prefect server's API and return its answer; POST if there is a body, unless `method`.

    Retries when the server is busy (503: SQLite is locked), as Prefect's client does. `password`
    has the form "user:password".
    """
    headers = {"Content-Type": "application/json"}
    if password:
        headers["Authorization"] = "Basic " + b64encode(password.encode()).decode()
    request = urllib.request.Request(
        api_url + path,
        data=None if body is None else json.dumps(body).encode(),
        headers=headers,
        method=method,
    )
    for _ in range(_BUSY_ANSWERS):
        try:
            return _answer(request)
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise
        time.sleep(0.5)
    return _answer(request)


def _answer(request):
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = answer.read()
        return json.loads(text) if text else None


def flow_run_of(api, dataset):
    """Return the latest flow run over a dataset, and its task runs."""
    runs = api("/flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 50})
    run = next(run for run in runs if run["parameters"].get("output") == str(dataset))
    tasks = api("/task_runs/filter", {"flow_runs": {"id": {"any_": [run["id"]]}}})
    return run, tasks


@contextmanager
def prefect_server_in(home, host="127.0.0.1", port=None, environment=None):
    """Run a separate Prefect server, by default on a free port; yield its API's URL.

    `environment` may have settings of the server, for example another database.
    """
    process, url = start_prefect_server(home, host, port, environment)
    with ended(process):
        yield url


def shared_server(name, start):
    """Return the URL of a server that all processes of this test run share.

    The first caller starts it: `start(folder)` returns its process and its URL.
    `end_shared_servers` ends it.
    """

    def start_once(folder):
        # The server's files cannot be in `folder`, which is renamed when the server runs.
        process, url = start(Path(os.environ[RUN_FOLDER]) / f"{name}-files")
        (folder / _SERVER).write_text(json.dumps({"pid": process.pid, "url": url}))

    return json.loads((made_once(name, start_once) / _SERVER).read_text())["url"]


def end_shared_servers(run_folder):
    """End the servers that the processes of a test run shared."""
    for record in Path(run_folder).glob(f"*/{_SERVER}"):
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(json.loads(record.read_text())["pid"])
            process.terminate()
            process.wait(30)


def start_prefect_server(home, host="127.0.0.1", port=None, environment=None):
    """Start a Prefect server, wait until it responds; return its process and its API's URL."""
    environment = environment or {}
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    on_sqlite = "PREFECT_API_DATABASE_CONNECTION_URL" not in environment
    if on_sqlite and not (home / "prefect.db").exists():
        make_home(home)
    port = port or free_ports(host)[0]
    url = f"http://{host}:{port}/api"
    settings = clean_environment(home) | {
        "PREFECT_API_URL": url,
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        # Prefect rounds 0.5 down to 0, and then the service uses a whole core.
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    }
    address = ["--host", host, "--port", str(port)]
    command = [sys.executable, "-m", "prefect", "server", "start", *address]
    log = home / "server.log"
    return start_server(command, f"{url}/health", log, settings | environment), url


@contextmanager
def ended(process):
    """End a process when the block ends."""
    try:
        yield process
    finally:
        process.terminate()
        process.wait(120)


def start_server(command, health_url, log, environment=None):
    """Start a server and wait until it responds; return its process."""
    with log.open("w") as out:
        server = subprocess.Popen(command, env=environment, stdout=out, stderr=out)

    def responds():
        assert server.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(health_url, timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    try:
        wait_for(responds, f"the start of {command}", START_SECONDS)
    except BaseException:
        server.kill()
        server.wait(30)
        raise
    return server
