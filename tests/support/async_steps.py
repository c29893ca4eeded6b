"""Async steps for tests. The text of an input says what happens to it."""

import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import BinaryIO

import batchmill

_in_progress = 0
_most = 0
_all_here = None
left = []


def note(folder, source):
    """Record an execution of an input, with the process and its present number of inputs."""
    with open(Path(folder, source.name), "a") as file:
        file.write(f"{os.getpid()} {_in_progress}\n")


async def rows(source: Path, *, log="") -> dict:
    """One row, after a pause that differs between inputs."""
    await asyncio.sleep(len(source.name) % 3 / 100)
    return {"text": source.read_text()}


async def several(source, out, *, log=""):
    """Two rows and a file."""
    (out / "upper.txt").write_text(source.read_text().upper())
    await asyncio.sleep(0)
    yield {"output": "upper.txt", "letter": "a"}
    await asyncio.sleep(0)
    yield {"letter": "b"}


class Callable:
    """An object with an async call."""

    async def __call__(self, source: Path, *, log="") -> dict:
        return await rows(source)

    async def method(self, source: Path, *, log="") -> dict:
        return await rows(source)


an_object = Callable()
a_method = an_object.method


class Client:
    """A class that is entered once in each worker."""

    def __init__(self, *, log="", prefix: str = ""):
        self.log, self.prefix = log, prefix

    async def __aenter__(self):
        self.task = asyncio.current_task()
        Path(self.log, f"enter-{os.getpid()}").write_text("")
        return self

    async def __aexit__(self, *error):
        assert asyncio.current_task() is self.task
        Path(self.log, f"exit-{os.getpid()}").write_text("")

    async def __call__(self, source: Path, *, row):
        await asyncio.sleep(0.01)
        return {"text": self.prefix + source.read_text(), "worker": os.getpid(), **row}


class Unopened:
    """A class whose first opening fails."""

    def __init__(self, *, log=""):
        self.mark = Path(log, "opened")

    async def __aenter__(self):
        if not self.mark.exists():
            self.mark.touch()
            raise ConnectionError("the service is not ready")

    async def __aexit__(self, *error):
        raise OSError("the connection is lost")

    async def __call__(self, source):
        return {"text": source.read_text()}


async def together(source, *, log, count: int):
    """Wait until this number of inputs is in progress in this worker."""
    global _in_progress, _most, _all_here
    _all_here = _all_here or asyncio.Event()
    _in_progress += 1
    _most = max(_most, _in_progress)
    if _in_progress == count:
        _all_here.set()
    await _all_here.wait()
    await asyncio.sleep(0.01)
    _in_progress -= 1
    return {"most": _most}


async def faulty(source, *, log):
    """Do what the text of the input says."""
    global _in_progress
    _in_progress += 1
    try:
        note(log, source)
        return await _act(source, source.read_text(), log)
    finally:
        _in_progress -= 1


async def _act(source, text, log):
    print("printed by", source.name)
    await asyncio.sleep(0.05)
    if text == "raise":
        raise ValueError(source.name)
    if text == "exit":
        os._exit(3)
    if text == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if text == "wait":
        await asyncio.sleep(1000)
    if text == "block":
        time.sleep(1000)
    if text == "swallow":
        await swallow()
    if text == "fill":
        held = bytearray(500 * 2**20)
        await asyncio.sleep(1000)
        del held
    if text == "keep":
        left.append(b"x" * (40 * 2**20))
    if text == "thread":
        await asyncio.to_thread(time.sleep, 1000)
    if text == "cancel":
        asyncio.current_task().cancel()
        await asyncio.sleep(0)
    if text == "leave":  # A task and a thread that continue.
        left.append(asyncio.create_task(asyncio.sleep(1000)))
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    if text == "move":
        os.chdir("/")
        os.environ["MOVED"] = "yes"
    if text == "bytes":
        sys.stdout.write(b"x")
    if text == "busy" and len(Path(log, source.name).read_text().split("\n")) < 4:
        raise batchmill.RetryAfter(0.1, "too many requests")
    print("and more by", source.name, file=sys.stderr)
    return {"text": text}


async def swallow():
    while True:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            print("not now")


async def in_parts(source: BinaryIO, *, log=""):
    """Read an open file."""
    await asyncio.sleep(0)
    return {"text": source.read().decode()}


class Needy:
    """Its call takes more than batchmill gives."""

    async def __call__(self, source, more):
        return more


async def crowd(source, *, log=""):
    """Return the number of tasks in the event loop of the worker."""
    await asyncio.sleep(0.001)
    return {"tasks": len(asyncio.all_tasks())}
