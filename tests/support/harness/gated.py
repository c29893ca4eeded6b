"""A step that waits for a file and logs its network namespace, and inputs for it.

With `go`, inputs from number `first` to `last` wait until a file of that name exists.
"""

import sys

STEP = """
import os, time
PLACE = os.readlink("/proc/self/ns/net")

def step(source, out, *, log, go="", first=0, last=99):
    with open(log, "a") as file: file.write(f"{source.name} {PLACE}\\n")
    gated = go and first <= int(source.stem) <= last
    while gated and not os.path.exists(go): time.sleep(0.05)
    (out / "copy").write_text(source.read_text() * 100)
    return {"output": "copy", "letters": len(source.read_text())}
"""
INPUTS = 60


def make_inputs(folder):
    """Write sixty small files to `in`, and the step as `slow:step`."""
    (folder / "in").mkdir()
    for number in range(INPUTS):
        (folder / "in" / f"{number:02d}.txt").write_text(f"{number}")
    (folder / "slow.py").write_text(STEP)


def command(folder, output, *options, **params):
    """Return the command that runs the step. The step writes its log to OUTPUT.log."""
    params = {"log": f"{folder}/{output}.log"} | params
    given = [part for key, value in params.items() for part in ("--param", f"{key}={value}")]
    job = ["run", "in", "--step", "slow:step", "-o", output, "--batch-size", "2"]
    return [sys.executable, "-m", "batchmill", *job, "--num-workers", "1", *given, *options]


def executions(folder, output):
    """Return a pair for each execution: the input's name, and the network namespace."""
    path = folder / f"{output}.log"
    return [tuple(line.split()) for line in path.read_text().splitlines()] if path.exists() else []


def places(folder, output):
    """Return the network namespaces in which inputs were executed."""
    return {place for _, place in executions(folder, output)}
