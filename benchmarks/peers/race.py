"""Run a contender's command against the clock, and look at what it leaves."""

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

# What somebody has set for their own Prefect or Ray, or for their threads, is not for these runs.
_FOREIGN = ("PREFECT_", "RAY_", "BATCHMILL_")
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# By this variable, the processes of a folder's contenders are known.
_MARK = "BATCHMILL_BENCHMARK_FOLDER"
# A process that was killed is gone after that, or its parent does not care.
_KILLED_SECONDS = 5


class RaceError(Exception):
    """A contender failed, or left something else than the bare DataLoader; its text says what."""


class Run(NamedTuple):
    """Seconds of a whole command, of its loop alone if that can be told, and what it left."""

    seconds: float
    loop: float | None
    left: Left


class Arena:
    """A folder in which contenders run, one at a time, and which holds all that they need."""

    def __init__(self, folder: Path, limit_seconds: float, logs: Path) -> None:
        self.folder = folder
        self.limit_seconds = limit_seconds
        # So long, what a command leaves behind has to end by itself.
        self.patience_seconds = 30.0
        self.logs = logs

    def run(
        self, contender: Contender, kind: str, inputs: Path, expected: Left | None = None
    ) -> Run:
        """Run a contender's command. Raises InstallError, RaceError."""
        out = self.folder / "out"
        command = contender.command(kind, inputs, out)
        # What was written and deleted before is not to be this one's burden.
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
        with (
            self._log("stdout").open("wb") as stdout,
            self._log("stderr").open("wb") as stderr,
        ):
            begun = time.perf_counter()
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=self._environment(),
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
            try:
                in_time = _ends_within(process, self.limit_seconds)
                seconds = time.perf_counter() - begun
            finally:
                self._end(process)
        if not in_time:
            raise RaceError(f"it took more than {self.limit_seconds:g} s")
        if process.returncode:
            lines = self._log("stderr").read_text(errors="replace").strip().splitlines()
            last = _one_line(lines[-1]) if lines else "nothing said"
            raise RaceError(f"it ended with {process.returncode}: {last}")
        return seconds

    def _end(self, process: "subprocess.Popen[bytes]") -> None:
        """End a command that is still there; wait for what it leaves behind, and end that, too."""
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(self.patience_seconds)
        _, left = psutil.wait_procs(self._started(), self.patience_seconds)
        for one in left:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(left, _KILLED_SECONDS)
        process.wait()

    def _started(self) -> list[psutil.Process]:
        """Return what was started here, and by what was, in whatever group or session it is."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                mine = process.environ().get(_MARK) == str(self.folder)
                if mine and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def _environment(self) -> dict[str, str]:
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
            }
        )

    def _told(self) -> float | None:
        """Return the seconds that a contender has printed last."""
        for line in reversed(self._log("stdout").read_text(errors="replace").splitlines()):
            with suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict) and "seconds" in found:
                    seconds: float | None = found["seconds"]
                    return seconds
        return None

    def _keep_logs(self, name: str) -> None:
        """Keep what a contender that failed has printed: its last line seldom says why."""
        self.logs.mkdir(parents=True, exist_ok=True)
        for stream in ("stdout", "stderr"):
            shutil.copyfile(self._log(stream), self.logs / f"{name}.{stream}")

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


def _ends_within(process: "subprocess.Popen[bytes]", seconds: float) -> bool:
    """Wait for a command's end. Popen.wait looks twenty times a second only, if it has a limit."""
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
