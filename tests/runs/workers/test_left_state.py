"""Settings of the process that a step changes do not reach the next input."""

import os
import textwrap

import pytest
from harness.jobs import run_job

from batchmill.runs.workers.process_state import ProcessState

# A change, and the expression that the other inputs must see unchanged.
CHANGES = {
    "SIGCHLD": (
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
        "signal.getsignal(signal.SIGCHLD)",
    ),
    "umask": ("os.umask(0)", "mask()"),
    "file size": (
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, resource.RLIM_INFINITY))",
        "resource.getrlimit(resource.RLIMIT_FSIZE)",
    ),
    "hard limit": (
        "resource.setrlimit(resource.RLIMIT_CPU, (9999, 9999))",
        "resource.getrlimit(resource.RLIMIT_CPU)",
    ),
    "timer": ("signal.setitimer(signal.ITIMER_PROF, 3600)", "signal.getitimer(signal.ITIMER_PROF)"),
    "recursion": ("sys.setrecursionlimit(5000)", "sys.getrecursionlimit()"),
    "user": ("os.setresuid(-1, 65534, -1)", "os.getresuid()"),
    "priority": ("os.nice(5)", "os.getpriority(os.PRIO_PROCESS, 0)"),
    "socket": ("socket.setdefaulttimeout(0.01)", "socket.getdefaulttimeout()"),
    "locale": ("locale.setlocale(locale.LC_ALL, other())", "locale.setlocale(locale.LC_ALL)"),
    "decimal traps": (
        "decimal.getcontext().traps[decimal.Inexact] = True",
        "decimal.getcontext().traps[decimal.Inexact]",
    ),
    "encoding": ("sys.stdout.reconfigure(encoding='ascii')", "sys.stdout.encoding"),
    "input": ("sys.stdin = sys.stdout", "sys.stdin is sys.stdout"),
    "decimal": ("decimal.getcontext().prec = 3", "decimal.getcontext().prec"),
    "torch type": ("torch.set_default_dtype(torch.float64)", "torch.get_default_dtype()"),
    "gradients": ("torch.set_grad_enabled(False)", "torch.is_grad_enabled()"),
    "environment": ("os.environ['LEFT'] = 'x'", "os.environ.get('LEFT')"),
    "folder": ("os.chdir('/')", "os.getcwd()"),
}
MODULE = """
import decimal, locale, os, resource, signal, socket, sys
import torch

def mask():
    now = os.umask(0o077)
    os.umask(now)
    return now

def other():
    return "C.UTF-8" if locale.setlocale(locale.LC_ALL) != "C.UTF-8" else "C"

def step(source):
    before = str({read})
    if source.name in ("b.txt", "c.txt"):
        {change}
        assert str({read}) != before
    return {{"seen": before}}
"""


def usable(name):
    """Return whether this user can make a change: only root can change the user."""
    return name != "user" or os.geteuid() == 0


@pytest.mark.parametrize("name", [name for name in CHANGES if usable(name)])
def test_the_next_input_sees_the_usual_value(tmp_path, monkeypatch, name):
    change, read = CHANGES[name]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    for letter in "abcdef":
        (tmp_path / "in" / f"{letter}.txt").write_text(letter)
    module = textwrap.dedent(MODULE).format(change=change, read=read)
    (tmp_path / "changing.py").write_text(module)
    seen = []
    run_job("in", "changing:step", "out", seen=seen, num_workers=1, cores=1)
    assert {outcome.kind for outcome in seen} == {"ok"}
    assert len({outcome.rows for outcome in seen}) == 1
    assert sorted(outcome.input[0] for outcome in seen) == list("abcdef")
    assert {outcome.attempts for outcome in seen} == {1}


def test_the_umask_never_has_another_value_while_it_is_checked(monkeypatch):
    """A thread that a step has left could write a file at that moment."""
    set_umask, masks = os.umask, []
    state = ProcessState()
    mask = set_umask(0o022)
    set_umask(mask)
    monkeypatch.setattr(os, "umask", lambda value: (masks.append(value), set_umask(value))[1])
    watched = ProcessState()
    masks.clear()
    assert watched.restore()
    set_umask(0o000)
    assert watched.restore()
    assert set(masks) == {mask}
    assert state.restore()
