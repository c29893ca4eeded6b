"""Kill whatever belongs to a run, again and again: in the end, it is the same dataset."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from comparison import contents, faults

from batchmill.ledger import Ledger
from batchmill.storage import LocalStore

INPUTS = 240
KILLS = int(os.environ.get("BATCHMILL_KILLS", "40"))
STEP = """
import time
def step(source, out, *, log):
    with open(log, "a") as file: file.write(source.name + "\\n")
    time.sleep(0.1)
    word = source.read_text()
    for i in range(3):
        (out / f"{i}.txt").write_text(word * (i + 1))
        yield {"output": f"{i}.txt", "word": word}
"""
VICTIMS = ("DataLoader worker", "Ray worker", "raylet", "driver")


def name_of(process):
    """Return which of the victims a process is; None for others."""
    try:
        title = process.name()
        if title.startswith("pt_data_worker"):
            return "DataLoader worker"
        if title.startswith("ray::"):
            return "Ray worker"
        if title == "raylet":
            return "raylet"
        return "driver" if "batchmill" in process.cmdline() else None
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def committed(dataset):
    ledger = Ledger(LocalStore(dataset))
    return set(ledger.records(["input"])["input"].to_pylist()) if ledger.exists else set()


@pytest.fixture
def job(work):
    (work / "in").mkdir()
    for number in range(INPUTS):
        (work / "in" / f"{number:03d}.txt").write_text(f"word {number}")
    (work / "triple.py").write_text(STEP)

    def command(output, log):
        return [
            *[sys.executable, "-m", "batchmill", "run", "in", "--step", "triple:step"],
            *["-o", output, "--param", f"log={work}/{log}", "--batch-size", "4", "--retries", "20"],
        ]

    return command


def test_the_dataset_is_that_of_an_undisturbed_run(shell, work, job):
    undisturbed = shell.run(*job("undisturbed", "other-log"))
    assert undisturbed.returncode == 0, undisturbed.stderr
    chance = random.Random(KILLS)
    killed = dict.fromkeys(VICTIMS, 0)
    done_twice = set()
    while sum(killed.values()) < KILLS:
        before = committed(work / "out")
        executed = (work / "log").read_text().split() if (work / "log").exists() else []
        run = shell.start(*job("out", "log"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while run.poll() is None and sum(killed.values()) < KILLS:
            time.sleep(chance.uniform(0.1, 1.0))
            found = {}
            for process in shell.leftovers():
                found.setdefault(name_of(process), []).append(process)
            # The first two often, or no run would come far.
            kinds = ["DataLoader worker"] * 6 + ["Ray worker"] * 2 + ["raylet", "driver"]
            kind = chance.choice(kinds)
            if kind in found and "DataLoader worker" in found:
                chance.choice(found[kind]).kill()
                killed[kind] += 1
        if sum(killed.values()) < KILLS:
            run.wait(timeout=300)
        else:
            run.kill()
            run.wait()
        again = (work / "log").read_text().split()[len(executed) :]
        done_twice |= {Path(name).name for name in before} & set(again)
        if len(committed(work / "out")) == INPUTS:
            # All is done before all kills are: begin once more.
            subprocess.run(["rm", "-rf", work / "out", work / "log"], check=True)
    final = shell.run(*job("out", "log"))
    assert final.returncode == 0, final.stderr
    assert done_twice == set()
    assert all(killed.values()), killed
    assert contents(work / "out") == contents(work / "undisturbed")
    assert faults(work / "out") == []
