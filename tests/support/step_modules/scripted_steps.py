"""Steps whose inputs follow a script: a JSON list with an act for each execution.

Each execution appends a line to a file of its own: its number, the time at which it began, and its
process. A further line has the time at which the act ended. The last act of a script repeats.
"""

import asyncio
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import torch

import batchmill

# More than the memory limit of a job.
FILL_BYTES = 400 * 2**20
kept = []


def begin(source, log):
    """Record an execution of an input, and return its act."""
    source = Path(source)
    note = Path(log, source.name)
    with note.open("a") as file:
        file.write(f"begin {time.monotonic()} {os.getpid()}\n")
    acts = json.loads(source.read_text())
    number = sum(line.startswith("begin") for line in note.read_text().splitlines())
    return acts[min(number, len(acts)) - 1]


def end(source, log):
    """Record that an act has ended."""
    with Path(log, Path(source).name).open("a") as file:
        file.write(f"end {time.monotonic()}\n")


def act_at_once(act, source, log):
    """Do what does not wait, and is the same in all kinds of steps."""
    what, _, value = act.partition(" ")
    if what == "raise":
        end(source, log)
        raise ValueError(act)
    if what == "pause":
        end(source, log)
        raise batchmill.RetryAfter(float(value))
    if what == "exit":
        os._exit(int(value))
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "fill":
        kept.append(bytearray(os.urandom(1)) * FILL_BYTES)
        threading.Event().wait()
    if what == "block":
        time.sleep(float(value))
    if what == "hang":
        threading.Event().wait()
    if what == "child":
        subprocess.Popen(["sleep", "1000"])
    if what == "thread":
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    if what == "open":
        kept.extend(open(os.devnull) for _ in range(60))  # noqa: SIM115
    if what == "nice":
        os.nice(1)
    if what == "move":
        os.chdir("/")
        os.environ["MOVED"] = "yes"
    return {"act": act, "moved": os.environ.get("MOVED", "")}


def plain(source, *, log):
    """A function."""
    act = begin(source, log)
    if act.startswith("wait"):
        time.sleep(float(act.split()[1]))
    return act_at_once(act, source, log)


def generator(source, *, log):
    """A generator, which acts while its rows are read."""
    act = begin(source, log)
    yield {"act": "first", "moved": ""}
    yield act_at_once(act, source, log)


class Items:
    """A torch Dataset."""

    def __init__(self, inputs, *, log):
        self.inputs, self.log = inputs, log

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return plain(Path(self.inputs[index]), log=self.log)


async def waiting(source, *, log):
    """An async function."""
    act = begin(source, log)
    what, _, value = act.partition(" ")
    if what == "wait":
        await asyncio.sleep(float(value))
    if what == "sleep":  # Forever.
        await asyncio.Event().wait()
    if what == "in_thread":
        await asyncio.to_thread(time.sleep, float(value))
    if what == "cancel":
        end(source, log)
        asyncio.current_task().cancel()
        return {"act": act}
    if what == "group":
        async with asyncio.TaskGroup() as group:
            group.create_task(_refuse(float(value), source, log))
    await asyncio.sleep(0)
    return act_at_once(act, source, log)


async def _refuse(seconds, source, log):
    end(source, log)
    raise batchmill.RetryAfter(seconds)


class Opened:
    """An async class."""

    def __init__(self, *, log):
        self.log = log

    async def __aenter__(self):
        os.environ["OPENED"] = "yes"
        return self

    async def __aexit__(self, *error):
        assert os.environ["OPENED"] == "yes"

    async def __call__(self, source):
        assert os.environ["OPENED"] == "yes"
        return await waiting(source, log=self.log)


class Batches(Items):
    """A batch step. Loading an input acts; an act of the batch begins with `batch`."""

    def __getitem__(self, index):
        path = Path(self.inputs[index])
        row = plain(path, log=self.log)
        return torch.full((1000,), float(index)), row["act"]

    def collate_fn(self, samples):
        return torch.stack([sample[0] for sample in samples]), [sample[1] for sample in samples]

    def process_batch(self, batch):
        values, acts = batch
        time.sleep(0.02)
        if "batch raise" in acts:
            raise ValueError("batch raise")
        assert values.std(dim=1).max() == 0
        return [{"act": act, "moved": ""} for act in acts]


class TwoPhases(Batches):
    """A batch step whose batches have two phases."""

    def begin_batch(self, batch):
        if "batch begin" in batch[1]:
            raise ValueError("batch begin")
        return lambda: self.process_batch(batch)
