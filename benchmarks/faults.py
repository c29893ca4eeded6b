"""Show what tools do with good files if some files are bad, and if all processes are killed.

    python -m benchmarks.faults [--tools joblib_parallel batchmill] [--files 1000] [--kills 20]

Each tool runs the same function over text files, with two workers, which gives a row for each file.
The trials of a tool:

1. `raise`, `crash`, `hang`, `memory`: the files with one or more bad ones. Five are not UTF-8, so
   that they raise; or one aborts the interpreter, never ends, or needs 1.5 GB more than usual and
   is then killed, as by the kernel. `all` has all of these. The same command runs a second time.
2. `change`: good files. The same command runs again, then after one more file, then after a change
   of one line of the function.
3. `kill`: good files. All processes get SIGKILL after a random number of executions, and the same
   command starts again each time. The last run is not killed.

The function appends to a log at each execution. The right rows are computed without a tool. Writes
build/bench/faults.json, and prints tables. Figures of the same day and options stay if --tools or
--trials leaves them out. All tools together take about half an hour on two quiet cores;
`--files 100 --kills 5` takes a third of it.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import machine
from benchmarks.compare import say
from benchmarks.peers.environments import ROOT, InstallError
from benchmarks.peers.faults.table import tables
from benchmarks.peers.faults.tools import OURS, TOOLS, Tool
from benchmarks.peers.faults.trial import Trial

FIGURES = ROOT / "build" / "bench" / "faults.json"
SEED = 20_261_129
BAD = {
    "raise": {"raise": 5},
    "crash": {"crash": 1},
    "hang": {"hang": 1},
    "memory": {"memory": 1},
    "all": {"raise": 5, "crash": 1, "hang": 1, "memory": 1},
}
TRIALS = (*BAD, "change", "kill")


class Job(NamedTuple):
    """A trial of a tool."""

    tool: Tool
    name: str
    call: Callable[[Tool], None]


class Bench:
    """The trials of all tools, of which some run at the same time."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options = folder, options
        self.figures: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._count = 0
        self._prefect: Path | None = None

    def jobs(self, tool: Tool) -> list[Job]:
        """Return the chosen trials of a tool."""
        found = [
            Job(tool, name, partial(self.bad, name=name))
            for name in BAD
            if name in self.options.trials
        ]
        for name, call in (("change", self.change), ("kill", self.kill)):
            if name in self.options.trials:
                found.append(Job(tool, name, call))
        return found

    def trial(self, tool: Tool, bad: dict[str, int]) -> Trial:
        """Return a trial in a new folder. Its name is short, because of Ray's sockets."""
        with self._lock:
            self._count += 1
            folder = self.folder / str(self._count)
        trial = Trial(tool, folder, self.options.files, bad, SEED)
        if self._prefect and tool.name == OURS:
            shutil.copytree(self._prefect, trial.prefect_home)
        return trial

    def warm_up(self, tool: Tool) -> None:
        """Run batchmill once, because the first run of a user creates Prefect's database."""
        trial = self.trial(tool, {})
        trial.run(5 * self.options.limit)
        self._prefect = trial.prefect_home

    def keep(self, tool: Tool, name: str, figures: Any) -> None:
        """Keep the figures of a trial, and show them."""
        with self._lock:
            self.figures.setdefault(tool.name, {})[name] = figures
            say(f"{tool.title}: {name}: {json.dumps(figures)}")

    def bad(self, tool: Tool, name: str) -> None:
        """Run the command twice over files of which some are bad."""
        trial = self.trial(tool, BAD[name])
        runs = [trial.run(self.options.limit).figures() for _ in range(2)]
        self.keep(tool, name, {"bad": trial.files.bad, "runs": runs})
        trial.close()

    def change(self, tool: Tool) -> None:
        """Run the command again after changes."""
        trial = self.trial(tool, {})
        first = trial.run(self.options.limit)
        again = trial.run(self.options.limit)
        trial.add_file(f"{self.options.files // 2:06d}a.txt", self.options.files)
        more = trial.run(self.options.limit)
        trial.change_code()
        changed = trial.run(self.options.limit)
        runs = {"first": first, "again": again, "more": more, "changed": changed}
        self.keep(tool, "change", {name: run.figures() for name, run in runs.items()})
        trial.close()

    def kill(self, tool: Tool) -> None:
        """Kill the command after random numbers of executions, and start it again.

        All kills together come after a few less executions than there are files, on average.
        """
        trial = self.trial(tool, {})
        numbers = random.Random(f"{SEED} {tool.name}")
        most = max(1, 2 * self.options.files // (self.options.kills + 1))
        killed = sum(
            trial.launch(self.options.limit, numbers.randint(1, most))[0] is None
            for _ in range(self.options.kills)
        )
        last = trial.run(self.options.limit)
        executed = trial.executions()
        self.keep(
            tool,
            "kill",
            {
                "starts": self.options.kills,
                "killed": killed,
                "executed": executed,
                "last": last.figures(),
            },
        )
        trial.close()


def run(bench: Bench, chosen: list[Tool]) -> dict[str, str]:
    """Run all trials. Returns the errors of tools that cannot be installed, or failed."""
    troubles: dict[str, str] = {}
    able = []
    for tool in chosen:
        try:
            tool.command(Path(), Path(), Path())
            able.append(tool)
            if tool.name == OURS:
                bench.warm_up(tool)
        except InstallError as error:
            troubles[tool.name] = str(error)
            say(f"{tool.title} is left out: {error}")

    def one(job: Job) -> None:
        try:
            job.call(job.tool)
        except Exception:  # noqa: BLE001
            troubles[job.tool.name] = f"{job.name}: {traceback.format_exc()}"
            say(f"{job.tool.title}: {troubles[job.tool.name]}")

    with ThreadPoolExecutor(bench.options.at_once) as pool:
        # The slowest tools are the last ones.
        list(pool.map(one, [job for tool in able[::-1] for job in bench.jobs(tool)]))
    return troubles


def add_earlier(figures: dict[str, Any], path: Path) -> None:
    """Add the figures of tools and trials that were measured earlier with the same options."""
    earlier = json.loads(path.read_text()) if path.exists() else {}
    same = ("made", "files", "kills", "limit")
    if not earlier or any(figures[name] != earlier[name] for name in same):
        return
    for part in ("titles", "versions", "limits"):
        figures[part] = earlier[part] | figures[part]
    tools = {}
    for name in [tool.name for tool in TOOLS if tool.name in figures["titles"]]:
        tools[name] = earlier["tools"].get(name, {}) | figures["tools"].get(name, {})
    figures["tools"] = tools


def main() -> None:
    """Run the trials, write the figures, and print the tables."""
    names = [tool.name for tool in TOOLS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tools", nargs="+", choices=names, default=names)
    parser.add_argument("--trials", nargs="+", choices=TRIALS, default=list(TRIALS))
    parser.add_argument("--files", type=int, default=1000, help="number of files in each trial")
    parser.add_argument("--kills", type=int, default=20, help="number of killed starts")
    parser.add_argument(
        "--limit", type=float, default=60.0, help="a run that takes more seconds is killed"
    )
    parser.add_argument("--at-once", type=int, default=2, help="trials at the same time")
    parser.add_argument("--figures", type=Path, default=FIGURES)
    options = parser.parse_args()
    if options.files < 40:
        parser.error("--files: at least 40, because eight of them are bad")
    chosen = [tool for tool in TOOLS if tool.name in options.tools]
    with tempfile.TemporaryDirectory(prefix="bm-", ignore_cleanup_errors=True) as name:
        bench = Bench(Path(name).resolve(), options)
        begun = datetime.now(UTC)
        troubles = run(bench, chosen)
    figures = {
        "made": begun.date().isoformat(),
        "minutes": round((datetime.now(UTC) - begun).total_seconds() / 60, 1),
        "command": " ".join(["python -m benchmarks.faults", *sys.argv[1:]]),
        "files": options.files,
        "kills": options.kills,
        "limit": options.limit,
        "machine": machine.describe(),
        "titles": {one.name: one.title for one in chosen},
        "versions": {one.name: one.version for one in chosen},
        "limits": {one.name: one.limits for one in chosen},
        "troubles": troubles,
        "tools": {one.name: bench.figures.get(one.name, {}) for one in chosen},
    }
    add_earlier(figures, options.figures)
    options.figures.parent.mkdir(parents=True, exist_ok=True)
    options.figures.write_text(json.dumps(figures, indent=1) + "\n")
    say(f"figures: {options.figures}")
    print(tables(figures))


if __name__ == "__main__":
    main()
