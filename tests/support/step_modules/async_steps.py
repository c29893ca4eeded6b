"""Async steps for tests. The text of an input says what happens to it."""

import asyncio
import io
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
    if text == "nice":  # The priority cannot be restored.
        os.nice(1)
    if text == "die later":
        asyncio.get_running_loop().call_later(0.2, os._exit, 3)
    if text == "cancel and return":
        asyncio.current_task().cancel()
        return {"text": text}
    if text == "third exit":
        if executions(source, log) == 3:
            os._exit(3)
        raise ValueError(source.name)
    if text == "block until two":  # Blocks the event loop, but not if it is executed again.
        wait_for(log, lambda names: len(names) == 2)
        time.sleep(1000)
    if text == "forever":
        raise batchmill.RetryAfter(float("inf"))
    if text == "refuse":
        raise Refused("429")
    if text == "group" and executions(source, log) == 1:
        async with asyncio.TaskGroup() as group:
            group.create_task(_refuse())
    if text == "wrap":
        await wrap_cancellation()
    if text == "close":
        sys.stdout.close()
        sys.stdout = io.TextIOWrapper(sys.stderr.buffer, encoding="ascii")
    if text == "open":
        left.extend(open(os.devnull) for _ in range(60))  # noqa: SIM115
    if text == "long":
        await asyncio.sleep(1)
    if text == "move":
        os.chdir("/")
        os.environ["MOVED"] = "yes"
    if text == "bytes":
        sys.stdout.write(b"x")
    if text == "busy" and len(Path(log, source.name).read_text().split("\n")) < 4:
        raise batchmill.RetryAfter(0.1, "too many requests")
    print("and more by", source.name, file=sys.stderr)
    return {"text": text}


def executions(source, log):
    """Return how often an input was executed so far."""
    return len(Path(log, source.name).read_text().splitlines())


def wait_for(log, condition):
    """Block until the names of the executed inputs meet a condition."""
    while not condition(os.listdir(log)):
        time.sleep(0.01)


class Refused(batchmill.RetryAfter):
    """Its `__init__` does not call that of the base class."""

    def __init__(self, answer):
        self.answer = answer


async def _refuse():
    raise batchmill.RetryAfter(0.1, "busy")


async def wrap_cancellation():
    try:
        await asyncio.sleep(1000)
    except asyncio.CancelledError as error:
        raise RuntimeError("the request failed") from error


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


_barrier = threading.Barrier(20)


async def in_threads(source, *, log):
    """Wait in a thread for 20 inputs, or forever."""
    note(log, source)
    if source.read_text() == "hang forever":
        await asyncio.to_thread(threading.Event().wait)
    wait = _barrier.wait if source.read_text() == "fine" else time.monotonic
    await asyncio.to_thread(wait)
    return {"text": source.read_text()}


async def hoards(source, *, log):
    """Keep 10 MB of each input, for a time that is shorter than the interval of the watchdog."""
    left.append(b"x" * (10 * 2**20))
    note(log, source)
    await asyncio.sleep(0.02)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {"bytes": pages * os.sysconf("SC_PAGE_SIZE")}


def hoards_without_waiting(source, *, log):
    """The same in a plain step."""
    left.append(b"x" * (10 * 2**20))
    note(log, source)
    time.sleep(0.02)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {"bytes": pages * os.sysconf("SC_PAGE_SIZE")}


class OpensSlowly:
    """A class whose first opening never ends."""

    def __init__(self, *, log, always: bool = False):
        self.mark, self.always = Path(log, "opened"), always
        self.log = log

    async def __aenter__(self):
        if self.always or not self.mark.exists():
            self.mark.touch()
            await asyncio.Event().wait()
        return self

    async def __aexit__(self, *error):
        pass

    async def __call__(self, source):
        note(self.log, source)
        return {"text": source.read_text()}


class Settings:
    """A class that changes settings when it is opened, and fails when it is left."""

    def __init__(self, *, log=""):
        os.environ["SET_IN_INIT"] = "1"

    async def __aenter__(self):
        os.environ["SET_IN_ENTER"] = "2"
        sys.setrecursionlimit(5000)
        return self

    async def __aexit__(self, *error):
        raise OSError("the results were not sent")

    async def __call__(self, source):
        await asyncio.sleep(0.01)
        names = ("SET_IN_INIT", "SET_IN_ENTER")
        return {"found": [*map(os.environ.get, names), sys.getrecursionlimit()]}


async def computes(source, *, log):
    """Block the event loop for a moment, as an input that parses an answer does."""
    await asyncio.sleep(0.2)
    ends = time.monotonic() + 0.6
    while time.monotonic() < ends:
        pass
