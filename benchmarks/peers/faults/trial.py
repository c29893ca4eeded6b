"""Run the command of a tool in a folder of its own, until it ends, a limit, or a kill."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks.peers.faults.files import Files, add_file, make_files
from benchmarks.peers.faults.judge import (
    Verdict,
    judge,
    names_in,
    read_messages,
    read_rows,
    right_rows,
)
from benchmarks.peers.faults.tools import Tool
from benchmarks.peers.race import KILLED_SECONDS, Arena, ends_within

# A line of the function, and its change: the word has one letter more.
CHANGE = ('"word": text[:4]', '"word": text[:5]')
LETTERS, CHANGED_LETTERS = 4, 5
# Processes that a command leaves behind are killed after this time.
_PATIENCE_SECONDS = 10.0
_POLL_SECONDS = 0.01


class Run(NamedTuple):
    """A run of the command.

    Attributes:
        exit: The exit status. None if it did not end before the limit or the kill.
        seconds: The time from its start to its end.
        executed: How often the function was executed.
        verdict: The results that the tool has left.
        last: The last line of its output.
    """

    exit: int | None
    seconds: float
    executed: int
    verdict: Verdict
    last: str

    def figures(self) -> dict[str, Any]:
        """Return the run as JSON."""
        own = self._asdict() | self.verdict._asdict()
        del own["verdict"]
        return own | {"seconds": round(self.seconds, 1)}


class Trial:
    """A tool over its own files, in a folder which later runs use again."""

    def __init__(
        self, tool: Tool, folder: Path, count: int, bad: Mapping[str, int], seed: int
    ) -> None:
        folder.mkdir()
        self.tool, self.folder = tool, folder
        self.arena = Arena(folder, 0.0, folder)
        self.inputs, self.out, self.code = folder / "in", folder / "out", folder / "code"
        self.out.mkdir()
        self.log = folder / "executions.log"
        self.log.touch()
        self.files: Files = make_files(self.inputs, count, bad, seed)
        self.right = right_rows(self.files.good, LETTERS)
        tool.write_code(self.code)

    @property
    def prefect_home(self) -> Path:
        """The folder with Prefect's database."""
        return self.folder / "prefect"

    def run(self, limit_seconds: float) -> Run:
        """Run the command, and judge what it has left."""
        before = self.executions()
        exit_status, seconds = self.launch(limit_seconds)
        names = names_in(read_messages(self.out, self._streams()))
        verdict = judge(read_rows(self.out), names, self.right, self.files.bad)
        return Run(exit_status, seconds, self.executions() - before, verdict, self._last())

    def launch(
        self, limit_seconds: float, kill_after: int | None = None
    ) -> tuple[int | None, float]:
        """Run the command. Kill all its processes at the limit, or when it has ended.

        Args:
            limit_seconds: The limit.
            kill_after: Kill them as soon as the function was executed this number of times.
        """
        command = self.tool.command(self.inputs, self.out, self.code)
        stdout, stderr = self._streams()
        with stdout.open("wb") as out, stderr.open("wb") as err:
            begun = time.perf_counter()
            process = subprocess.Popen(
                command,
                cwd=self.code,
                env=self.arena.environment() | {"FAULTS_LOG": str(self.log)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            try:
                if kill_after:
                    self._await(process, self.executions() + kill_after, limit_seconds)
                    limit_seconds = 0
                in_time = ends_within(process, limit_seconds)
                seconds = time.perf_counter() - begun
                if in_time:
                    psutil.wait_procs(self.arena.started(), _PATIENCE_SECONDS)
            finally:
                self._kill(process)
        return (process.returncode if in_time else None), seconds

    def add_file(self, name: str, number: int) -> None:
        """Add a good file."""
        self.files.good[name] = add_file(self.inputs / name, number)
        self.right = right_rows(self.files.good, LETTERS)

    def change_code(self) -> None:
        """Change a line of the function. All files have another right row."""
        self.tool.write_code(self.code, CHANGE)
        self.right = right_rows(self.files.good, CHANGED_LETTERS)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def executions(self) -> int:
        """Return the number of executions of all runs."""
        return self.log.read_text().count("\n")

    def _await(
        self, process: "subprocess.Popen[bytes]", executions: int, limit_seconds: float
    ) -> None:
        """Wait until the log has a number of executions, the command has ended, or the limit."""
        end = time.monotonic() + limit_seconds
        while time.monotonic() < end and self.executions() < executions:
            if ends_within(process, _POLL_SECONDS):
                return

    def _streams(self) -> tuple[Path, Path]:
        return self.folder / "stdout.log", self.folder / "stderr.log"

    def _last(self) -> str:
        for stream in self._streams()[::-1]:
            lines = stream.read_text(errors="replace").strip().splitlines()
            if lines:
                return lines[-1][-300:]
        return ""

    def _kill(self, process: "subprocess.Popen[bytes]") -> None:
        """Kill the process group, and all other processes that the command started."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        while left := self.arena.started():
            for one in left:
                with suppress(psutil.NoSuchProcess):
                    one.kill()
            psutil.wait_procs(left, KILLED_SECONDS)
