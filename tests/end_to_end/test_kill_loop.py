"""Kill the processes of a run repeatedly; the final dataset equals that of an undisturbed run."""

import os
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from harness.comparison import committed, contents, faults
from harness.jobs import run_job

from batchmill import LedgerError

pytestmark = pytest.mark.soak

# The number of inputs, in the short version and in the long one.
FEW_INPUTS, MANY_INPUTS = 80, 120
# The number of kills in the long version, which also kills processes of Ray.
MANY_KILLS = int(os.environ.get("BATCHMILL_KILLS", "40"))
FEW_KILLS = 3
STEP = """
import os, time
def step(source, out, *, log, hurry):
    with open(log, "a") as file: file.write(source.name + "\\n")
    if not os.path.exists(hurry): time.sleep(0.1)
    word = source.read_text()
    for i in range(3):
        (out / f"{i}.txt").write_text(word * (i + 1))
        yield {"output": f"{i}.txt", "word": word}
"""
# Two sources that break the commit protocol in each process that imports the step.
RECORD_BEFORE_OUTPUTS = """
import os, threading
from batchmill.core.storage import LocalStore
put = LocalStore.put_folder
def put_later(store, folder, name, files):
    aside = folder.with_name(folder.name + "-aside")
    os.rename(folder, aside)
    threading.Timer(1.5, put, (store, aside, name, files)).start()
LocalStore.put_folder = put_later
"""
WRITE_IN_PLACE = """
import io, time
from batchmill.core.storage import LocalStore
def write_atomic(store, name, writer):
    whole = io.BytesIO()
    writer(whole)
    target = store.root / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb", buffering=0) as file:
        data = whole.getvalue()
        file.write(data[: len(data) // 2])
        time.sleep(0.5)  # So that one of the kills falls between the halves.
        file.write(data[len(data) // 2 :])
LocalStore.write_atomic = write_atomic
"""
# The kinds of processes that are killed on each runner.
VICTIMS = {
    "local": ("DataLoader worker", "shard process", "driver"),
    "ray": ("DataLoader worker", "shard process", "raylet", "driver"),
}


def name_of(process):
    """Return the kind of a process, as in VICTIMS; None for all others."""
    try:
        title = process.name()
        if title.startswith("pt_data_worker"):
            return "DataLoader worker"
        if title == "raylet":
            return "raylet"
        command = process.cmdline()
        if title.startswith("ray::") or "batchmill.runs.shards.process" in command:
            return "shard process"
        return "driver" if "batchmill" in command else None
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


@pytest.fixture
def count(is_long):
    """Return the number of inputs."""
    return MANY_INPUTS if is_long else FEW_INPUTS


@pytest.fixture
def job(work, count):
    """Writes inputs and the step. Returns a function that makes the command of a run.

    The step is slow until a file `hurry` exists.
    """
    (work / "in").mkdir()
    for number in range(count):
        (work / "in" / f"{number:03d}.txt").write_text(f"word {number}")
    (work / "triple.py").write_text(STEP)

    def command(output, log, step="triple:step", runner=()):
        return [
            *[sys.executable, "-m", "batchmill", "run", "in", "--step", step],
            *["-o", output, "--param", f"log={work}/{log}", "--param", f"hurry={work}/hurry"],
            *["--batch-size", "4", "--retries", "20"],
            *runner,
        ]

    return command


# Frequent kills of the raylet or the driver would leave the runs too little progress.
CHOICE = ["DataLoader worker"] * 6 + ["shard process"] * 2 + ["raylet", "driver"]
FEW_CHOICE = ["DataLoader worker", "shard process", "driver"]


class KillLoop:
    """Runs a command repeatedly, and kills one of its processes about every `pause` seconds."""

    def __init__(self, shell, work, command, choice, seed, pause=0.5):
        self.shell, self.work, self.command = shell, work, command
        self.choice, self.pause = choice, pause
        self.chance = random.Random(seed)
        self.killed = dict.fromkeys(choice, 0)
        # The kinds to kill next, drawn without replacement, so each kind is killed in turn.
        self.kinds_left = []
        self.faults = []

    @property
    def kills(self):
        return sum(self.killed.values())

    def run(self, kills):
        """Run once, with at most `kills` kills over all runs; record the faults."""
        before, earlier = committed(self.work / "out"), self.executed()
        kills_before = self.kills
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        # One shard with two workers, or several shards with one worker.
        division = ["--num-workers", self.chance.choice("12")]
        run = self.shell.start(*self.command, *division, **quiet)
        while run.poll() is None and self.kills < kills:
            with suppress(subprocess.TimeoutExpired):
                run.wait(self.chance.uniform(0.2, 1.8) * self.pause)
            self.kill_one()
        if self.kills == kills:
            run.kill()
        run.wait(timeout=300)
        if run.returncode != 0 and self.kills == kills_before:
            self.faults.append(f"the run failed without a kill: {run.returncode}")
        twice = {Path(name).name for name in before} & set(self.executed()[len(earlier) :])
        if twice:
            self.faults.append(f"committed, but executed again: {sorted(twice)}")
        try:
            committed(self.work / "out")
        except LedgerError as error:
            self.faults.append(str(error))

    def kill_one(self):
        found = {}
        for process in self.shell.leftovers():
            found.setdefault(name_of(process), []).append(process)
        if "DataLoader worker" not in found:
            return
        if not self.kinds_left:
            self.kinds_left = self.chance.sample(self.choice, len(self.choice))
        kind = next((kind for kind in self.kinds_left if kind in found), None)
        if kind:
            with suppress(psutil.NoSuchProcess):  # It has just ended.
                self.chance.choice(found[kind]).kill()
                self.kinds_left.remove(kind)
                self.killed[kind] += 1

    def executed(self):
        log = self.work / "log"
        return log.read_text().split() if log.exists() else []

    def start_over(self):
        subprocess.run(["rm", "-rf", self.work / "out", self.work / "log"], check=True)


@pytest.mark.parametrize("pack", ["", pytest.param("1MB", marks=pytest.mark.long)])
def test_kills_do_not_change_the_dataset(
    shell, work, job, count, runner, pack, is_long, seed, monkeypatch
):
    monkeypatch.chdir(work)
    params = {"log": f"{work}/other-log", "hurry": str(work)}
    undisturbed = run_job("in", "triple:step", "undisturbed", options={"pack": pack}, **params)
    assert undisturbed.outcomes == {"ok": count}
    victims = VICTIMS["ray" if runner else "local"]
    kills = MANY_KILLS if is_long else FEW_KILLS
    command = job("out", "log", runner=[*runner, *(["--pack", pack] if pack else [])])
    choice = [kind for kind in CHOICE if kind in victims] if is_long else FEW_CHOICE
    loop = KillLoop(shell, work, command, choice, seed)
    while loop.kills < kills:
        loop.run(kills)
        assert loop.faults == []
        if len(committed(work / "out")) == count:
            # All inputs are done, but some kills are left.
            expect_the_same(shell, work, command)
            loop.start_over()
    (work / "hurry").touch()
    expect_the_same(shell, work, command)
    print(loop.killed)
    assert all(loop.killed.values()), loop.killed


def expect_the_same(shell, work, command):
    final = shell.run(*command)
    assert final.returncode == 0, final.stderr
    assert contents(work / "out") == contents(work / "undisturbed")
    assert faults(work / "out") == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("breakage", "choice"),
    [(RECORD_BEFORE_OUTPUTS, ["DataLoader worker"]), (WRITE_IN_PLACE, ["shard process", "driver"])],
)
def test_the_kill_loop_detects_a_broken_commit_protocol(
    shell, work, job, count, breakage, choice, seed
):
    (work / "broken.py").write_text(breakage + STEP)
    loop = KillLoop(shell, work, job("out", "log", "broken:step"), choice, seed, pause=2.0)
    while not loop.faults and loop.kills < MANY_KILLS:
        # Only the next run shows the fault. On a slow machine, one run could use up all kills.
        loop.run(min(MANY_KILLS, loop.kills + 3))
        if not loop.faults and len(committed(work / "out")) == count:
            loop.run(MANY_KILLS)  # The next run shows missing outputs.
            if not loop.faults:
                loop.start_over()
    print(loop.killed, loop.faults)
    assert loop.faults
