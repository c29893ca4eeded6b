"""Steps that damage their process or their files in every way that a step can.

The input's name selects the damage: `07-segfault` is the eighth input.
"""

import ctypes
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

# More than the memory limit of an input in any test.
HOARD_BYTES = 500 * 2**20


class UnpicklableError(Exception):
    def __init__(self):
        super().__init__("x")
        self.lock = threading.Lock()

    def __reduce__(self):
        raise TypeError("cannot be pickled")


class UnprintableError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def _raise(error):
    raise error


def _hang():
    """Wait forever; a handled signal does not end the wait."""
    threading.Event().wait()


def wait_for_file(path):
    """Wait until a test creates the file. The time limit of the input ends the wait if it fails."""
    while not os.path.exists(path):
        time.sleep(0.05)


def _hoard_and_wait(log=""):
    hoard = b"x" * HOARD_BYTES
    if log:
        Path(f"{log}.hoarder").write_text(str(os.getpid()))
    _hang()
    return len(hoard)


def _hoard_and_fork_and_wait():
    hoard = b"x" * HOARD_BYTES
    os.fork()
    _hang()
    return len(hoard)


def _recurse():
    return _recurse()


def _loop():
    while True:
        pass


def _allocate():
    hoard = []
    while True:
        hoard.append(bytearray(os.urandom(1)) * (16 * 2**20))


def _orphan():
    """Leave a grandchild in a separate session, whose parent has ended."""
    script = "import os, time\nif os.fork(): os._exit(0)\nos.setsid()\n"
    script += "import threading\nthreading.Event().wait()\n"
    subprocess.run([sys.executable, "-c", script], check=True)


def _ignore_sigterm():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen(["sleep", "600"])
    _hang()


def _print_much():
    line = b"x" * 2**20
    for _ in range(200):
        os.write(1, line)
    print("the last line", flush=True)
    raise ValueError("after much noise")


def _close_streams():
    os.closerange(0, 3)


def _mess_up():
    os.chdir("/")
    os.environ.clear()
    os.environ["POISON"] = "left behind"
    sys.stdout = None
    threading.Thread(target=_hang, daemon=True).start()
    subprocess.Popen(["sleep", "600"], start_new_session=True)


def _fork_and_return():
    if os.fork() == 0:
        return {"from": "the child"}
    return {"from": "the parent"}


def _yield_and_fail():
    yield {"n": 1}
    raise ValueError("half-way")


def _remove_folder():
    os.chdir(tempfile.mkdtemp())
    os.rmdir(os.getcwd())


def _replace_environment():
    os.environ = {"POISON": "left behind"}  # noqa: B003


def _leave_alarm():
    signal.signal(signal.SIGALRM, lambda *_: _raise(TimeoutError("somebody else's alarm")))
    signal.setitimer(signal.ITIMER_REAL, 0.05)


class _Nameless(type):
    @property
    def __name__(cls):
        raise RuntimeError("no name")


class NamelessError(Exception, metaclass=_Nameless):
    pass


# For each name: the function, the outcome's kind, and the outcome's error.
POISONS = {
    "valueerror": (lambda: _raise(ValueError("bad header")), "failed", "ValueError"),
    "memoryerror": (lambda: _raise(MemoryError()), "failed", "MemoryError"),
    "systemexit": (lambda: sys.exit(3), "failed", "SystemExit"),
    "keyboard": (lambda: _raise(KeyboardInterrupt()), "failed", "KeyboardInterrupt"),
    "stop": (lambda: _raise(StopIteration()), "failed", "StopIteration"),
    "generatorexit": (lambda: _raise(GeneratorExit()), "failed", "GeneratorExit"),
    "recursion": (_recurse, "failed", "RecursionError"),
    "unpicklable": (lambda: _raise(UnpicklableError()), "failed", "UnpicklableError"),
    "unprintable": (lambda: _raise(UnprintableError()), "failed", "UnprintableError"),
    "loop": (_loop, "timeout", "Timeout"),
    "sleep": (lambda: time.sleep(600), "timeout", "Timeout"),
    "gil": (lambda: re.match(r"(a+)+$", "a" * 64 + "b"), "timeout", "Timeout"),
    "sigterm": (_ignore_sigterm, "timeout", "Timeout"),
    "segfault": (lambda: ctypes.string_at(0), "crashed", "SIGSEGV"),
    "abort": (os.abort, "crashed", "SIGABRT"),
    "exit0": (lambda: os._exit(0), "crashed", "exit code 0"),
    "exit3": (lambda: os._exit(3), "crashed", "exit code 3"),
    "kill": (lambda: os.kill(os.getpid(), signal.SIGKILL), "crashed", "SIGKILL"),
    "allocate": (_allocate, "oom", "OutOfMemory"),
    "lock": (threading.Lock, "failed", "TypeError"),
    "huge": (lambda: {"text": "x" * (200 * 2**20)}, "failed", "ValueError"),
    "halfway": (_yield_and_fail, "failed", "ValueError"),
    "noise": (_print_much, "failed", "ValueError"),
    "closed": (_close_streams, "ok", ""),
    "mess": (_mess_up, "ok", ""),
    "fork": (_fork_and_return, "ok", ""),
    "orphan": (_orphan, "ok", ""),
    "large": (lambda: {"text": "x" * (5 * 2**20)}, "ok", ""),
    "folder": (_remove_folder, "ok", ""),
    "environ": (_replace_environment, "ok", ""),
    "detach": (lambda: sys.stdout.detach() and None, "ok", ""),
    "closeall": (lambda: os.closerange(3, 1000), "ok", ""),
    "alarm": (_leave_alarm, "ok", ""),
    "stopped": (lambda: os.kill(os.getpid(), signal.SIGSTOP), "timeout", "Timeout"),
    "nameless": (lambda: _raise(NamelessError()), "failed", "NamelessError"),
}


def kind_of(name):
    return name.split("-")[1]


# Faults with output files: the function, and the outcome's error.
FILE_POISONS = {
    "outside": (lambda out: {"output": "../x"}, "OutputError"),
    "absolute": (lambda out: {"output": "/etc/passwd"}, "OutputError"),
    "unnamed": (lambda out: _write(out / "x", {}), "OutputError"),
    "unwritten": (lambda out: {"output": "x"}, "OutputError"),
    "escape": (lambda out: _link(out / "x", out.parent), "OutputError"),
    "pipe": (lambda out: _pipe(out / "x"), "OutputError"),
    "raises": (lambda out: _write(out / "x", None), "ValueError"),
    "deep": (lambda out: _dig(out), "RecursionError"),
    "replaced": (lambda out: _replace(out), "OutputError"),
    "late": (lambda out: _forked_late(out), ""),
}


def _write(path, row):
    path.write_text("half")
    if row is None:
        raise ValueError("after it wrote")
    return row


def _link(path, target):
    path.symlink_to(target)
    return {"output": path.name}


def _dig(out):
    os.chdir(out)
    for _ in range(1500):
        os.mkdir("d")
        os.chdir("d")


def _replace(out):
    out.rename(out.with_name(out.name + "-aside"))
    out.symlink_to(out.with_name(out.name + "-aside"))
    return {}


def _pipe(path):
    os.mkfifo(path)
    return {"output": path.name}


def write(source: Path, out: Path, *, log: str):
    """Log the execution, read the input, then make the fault that its name selects."""
    with open(log, "a") as file:
        file.write(f"{source.name}\n")
    first = source.read_text()[0]
    kind = kind_of(source.name)
    if kind in FILE_POISONS:
        return FILE_POISONS[kind][0](out)
    (out / "copy").write_text(first)
    return {"output": "copy"}


def _forked_late(out):
    """Return in the parent; a forked child raises after the parent's files are moved."""
    if os.fork() == 0:
        while out.exists():
            time.sleep(0.05)
        raise ValueError("in the child")
    (out / "x").write_text("the parent's")
    return {"output": "x"}


def _surroundings():
    return [os.getcwd(), os.environ.get("POISON"), os.path.exists("/proc/self/fd/1")]


def step(source: Path, *, log: str):
    """Log the execution, then do the damage that the input's name selects."""
    with open(log, "a") as file:
        file.write(f"{source.name}\n")
    kind = kind_of(source.name)
    if kind in POISONS:
        return POISONS[kind][0]()
    if kind == "hoard":
        return {"bytes": _hoard_and_wait(log)}
    if kind == "wait":
        wait_for_file(f"{log}.go")
    if kind == "fork_and_wait":
        with multiprocessing.get_context("fork").Pool(2) as pool:
            pool.map(wait_for_file, [f"{log}.go"] * 2)
    if kind == "fork_and_hoard":
        with multiprocessing.get_context("fork").Pool(1) as pool:
            pool.apply(_hoard_and_wait)
    if kind == "fork_and_hoard_and_fork":
        with multiprocessing.get_context("fork").Pool(1) as pool:
            pool.apply(_hoard_and_fork_and_wait)
    print(f"working on {source.name}")
    return {"surroundings": _surroundings()}


class Items:
    """The step as a Dataset class."""

    def __init__(self, inputs, log):
        self.inputs = inputs
        self.log = log

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return step(Path(self.inputs[index]), log=self.log)


def flaky(source: Path, *, log: str, fails: int):
    """Fail `fails` times on the input `flaky`, then succeed."""
    with open(log, "a") as file:
        file.write(f"{source.name}\n")
    if source.name == "flaky" and Path(log).read_text().splitlines().count("flaky") <= fails:
        raise ValueError("not yet")
    return {"n": 1}
