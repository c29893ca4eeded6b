"""Run Postgres for a test, with Debian's programs, in a temporary folder and on a free port."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

from harness.live import free_ports, wait_for

SUPERUSER = "postgres"


def program(name):
    """Return the path of a Postgres program, from the newest installed version."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=version_of)
    assert found, "postgresql is not installed. Run: sudo make system-packages"
    return str(found[-1])


def version_of(path):
    return int(path.parents[1].name)


@contextmanager
def postgres():
    """Run a Postgres server; yield its `Cluster`.

    Postgres refuses to run as root. For root it runs as the user that Debian's package creates.
    """
    as_user = {}
    if os.geteuid() == 0:
        user = pwd.getpwnam("postgres")
        as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    # Only its owner can enter pytest's folder, so Postgres needs another folder.
    with tempfile.TemporaryDirectory(prefix="postgres-") as name:
        folder = Path(name)
        if as_user:
            shutil.chown(folder, user.pw_uid, user.pw_gid)
        cluster = Cluster(folder, free_ports()[0], as_user)
        with cluster.running():
            yield cluster


class Cluster:
    """A database cluster in a folder, with its socket; `address` is HOST:PORT."""

    def __init__(self, folder, port, as_user):
        self.address = f"127.0.0.1:{port}"
        self._folder, self._port, self._as_user = folder, port, as_user

    @contextmanager
    def running(self):
        """Create the cluster, and run it until the block ends."""
        data, log = self._folder / "data", self._folder / "log"
        # Connections over the network need a password, as after Debian's installation.
        trust = ["--auth-local=trust", "--auth-host=scram-sha-256"]
        made = self._run(
            "initdb", "-D", data, "-U", SUPERUSER, *trust, "-E", "UTF8", "--no-locale", "--no-sync"
        )
        assert made.returncode == 0, made.stderr
        with log.open("w") as out:
            server = subprocess.Popen(
                [
                    program("postgres"), "-D", data, "-h", "127.0.0.1", "-p", str(self._port),
                    "-k", self._folder, "-c", "fsync=off",
                ],
                stdout=out, stderr=out, cwd=self._folder, **self._as_user,
            )  # fmt: skip

        def responds():
            assert server.poll() is None, log.read_text()
            return self._run("pg_isready", "-h", self._folder, "-p", self._port).returncode == 0

        try:
            wait_for(responds, "the start of Postgres")
            yield
        finally:
            server.send_signal(signal.SIGINT)  # "Fast" shutdown, which does not wait for clients.
            server.wait(60)

    def sql(self, text, database="postgres"):
        """Run SQL as the superuser; return the output without headers."""
        done = self._run(
            "psql", "-X", "-h", self._folder, "-p", self._port, "-U", SUPERUSER, "-d", database,
            "-v", "ON_ERROR_STOP=1", "-At", given=text,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _run(self, name, *arguments, given=""):
        return subprocess.run(
            [program(name), *map(str, arguments)],
            input=given, capture_output=True, text=True, timeout=120, cwd=self._folder,
            **self._as_user,
        )  # fmt: skip
