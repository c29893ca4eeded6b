"""Time the command of a contender, and check its results."""

import json
import os
import select
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.peers.contenders import OURS, Contender
from benchmarks.peers.environments import ROOT
from benchmarks.peers.results import Left, look_at, loop_seconds

# Variables of these tools in the user's environment are not passed on.
_FOREIGN = ("PREFECT_", "RAY_", "BATCHMILL_")
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# Set in the environment of all contenders, so that their processes can be found.
_MARK = "BATCHMILL_BENCHMARK_FOLDER"
# The longest wait for killed processes. A zombie can remain if its parent does not reap it.
KILLED_SECONDS = 5


class RaceError(Exception):
    """A contender failed, or its results differ from those of the bare DataLoader."""


class Run(NamedTuple):
    """The seconds of a whole command and of its loop (None if unknown), and its results."""

    seconds: float
    loop: float | None
    left: Left


class Arena:
    """A folder in which contenders run, one at a time."""

    def __init__(self, folder: Path, limit_seconds: float, logs: Path) -> None:
        self.folder = folder
        self.limit_seconds = limit_seconds
        # Processes that a command leaves behind are killed after this time.
        self.patience_seconds = 30.0
        self.logs = logs

    def run(
        self, contender: Contender, kind: str, inputs: Path, expected: Left | None = None
    ) -> Run:
        """Run a contender's command. Raises InstallError, RaceError."""
        out = self.folder / "out"
        command = contender.command(kind, inputs, out)
        # Earlier writes must not slow this contender down.
        os.sync()
        try:
            seconds = self._time(command)
            try:
                left = look_at(out, kind)
            except (OSError, KeyError, ValueError) as error:
                raise RaceError(f"its table cannot be read: {_one_line(str(error))}") from error
            if expected and left != expected:
                raise RaceError(f"it left {_shortly(left)}, not {_shortly(expected)}")
            loop = loop_seconds(out) if contender.name == OURS else self._told()
            return Run(seconds, loop, left)
        except RaceError:
            self._keep_logs(f"{contender.name}-{kind}")
            raise
        finally:
            shutil.rmtree(out, ignore_errors=True)

    def _time(self, command: list[str]) -> float:
        with self._log("stdout").open("wb") as stdout, self._log("stderr").open("wb") as stderr:
            begun = time.perf_counter()
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=self.environment(),
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
            try:
                in_time = ends_within(process, self.limit_seconds)
                seconds = time.perf_counter() - begun
            finally:
                self._end(process)
        if not in_time:
            raise RaceError(f"it took more than {self.limit_seconds:g} s")
        if process.returncode:
            lines = self._log("stderr").read_text(errors="replace").strip().splitlines()
            last = _one_line(lines[-1]) if lines else "no output"
            raise RaceError(f"it ended with {process.returncode}: {last}")
        return seconds

    def _end(self, process: "subprocess.Popen[bytes]") -> None:
        """End a running command. Wait for processes that it left, then kill them."""
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(self.patience_seconds)
        _, left = psutil.wait_procs(self.started(), self.patience_seconds)
        for one in left:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(left, KILLED_SECONDS)
        process.wait()

    def started(self) -> list[psutil.Process]:
        """Return the processes that contenders started, also those in other sessions."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                mine = process.environ().get(_MARK) == str(self.folder)
                if mine and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def environment(self) -> dict[str, str]:
        """Return the environment of all contenders, without the user's settings of tools."""
        own = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        for name, place in (
            ("PREFECT_HOME", "prefect"),
            ("HF_HOME", "hugging-face"),
            ("DATA_OPTIMIZER_CACHE_FOLDER", "litdata"),
            ("DATA_OPTIMIZER_DATA_CACHE_FOLDER", "litdata-data"),
            ("RAY_TMPDIR", "ray"),
            ("TMPDIR", "tmp"),
        ):
            (self.folder / place).mkdir(exist_ok=True)
            own[name] = str(self.folder / place)
        return (
            own
            | dict.fromkeys(_THREADS, "1")
            | {
                _MARK: str(self.folder),
                "PYTHONPATH": str(ROOT),
                "RAY_ADDRESS": "local",
                "RAY_AUTH_MODE": "disabled",
                "RAY_USAGE_STATS_ENABLED": "0",
                "HF_HUB_OFFLINE": "1",
                "DO_NOT_TRACK": "1",
                "COCOINDEX_DISABLE_USAGE_TRACKING": "1",
                "DATACHAIN_NO_ANALYTICS": "1",
            }
        )

    def _told(self) -> float | None:
        """Return the seconds that a contender printed last; None if it printed none."""
        for line in reversed(self._log("stdout").read_text(errors="replace").splitlines()):
            with suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict) and "seconds" in found:
                    seconds: float | None = found["seconds"]
                    return seconds
        return None

    def _keep_logs(self, name: str) -> None:
        """Keep the output of a failed contender. Its last line is often not the reason."""
        self.logs.mkdir(parents=True, exist_ok=True)
        for stream in ("stdout", "stderr"):
            shutil.copyfile(self._log(stream), self.logs / f"{name}.{stream}")

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


def ends_within(process: "subprocess.Popen[bytes]", seconds: float) -> bool:
    """Wait for the end of a command. Popen.wait with a timeout polls only every 50 ms."""
    descriptor = os.pidfd_open(process.pid)
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)


def _shortly(left: Left) -> str:
    return f"{left.rows:,} rows and {left.files:,} files ({left.content[:12]})"


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) < 160 else f"{line[:157]}..."
