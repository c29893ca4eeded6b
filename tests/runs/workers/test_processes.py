"""Signals reach only the children of this process, and their descendants."""

import os
import signal
import subprocess
import sys

import psutil
import pytest
from harness.live import wait_for

from batchmill.runs.workers import processes
from batchmill.runs.workers.processes import ChildProcess, kill_tree
from batchmill.runs.workers.stop_flags import SharedFlag, Stop
from batchmill.runs.workers.watchdog import Limits, Watchdog
from batchmill.runs.workers.worker_channel import WorkerChannel


@pytest.fixture
def stranger():
    """A process that is not a child of this one. A worker's id may be reused by one."""
    made = subprocess.run(
        ["sh", "-c", "sleep 600 > /dev/null 2>&1 & echo $!"],
        capture_output=True,
        text=True,
        check=True,
    )
    process = psutil.Process(int(made.stdout))
    wait_for(lambda: process.status() == psutil.STATUS_SLEEPING, "the process sleeps")
    yield process
    process.kill()


def test_a_stranger_gets_no_signal(stranger):
    kill_tree(stranger.pid)
    child = ChildProcess(stranger.pid)
    assert not child.pause()
    child.kill_tree()
    child.send(signal.SIGKILL)
    child.close()
    assert stranger.status() == psutil.STATUS_SLEEPING


def test_a_child_with_its_descendants_is_killed():
    started = subprocess.Popen(
        ["sh", "-c", "sh -c 'sleep 600 & sleep 600' & sleep 600 & wait"], stdout=subprocess.DEVNULL
    )
    below = psutil.Process(started.pid)
    wait_for(lambda: len(below.children(recursive=True)) == 4, "descendants")
    found = below.children(recursive=True)
    child = ChildProcess(started.pid)
    assert child.pause()
    assert below.status() == psutil.STATUS_STOPPED
    child.kill_tree()
    assert started.wait() == -signal.SIGKILL
    assert psutil.wait_procs(found, timeout=30)[1] == []
    assert not child.pause(), "it has ended"
    child.close()


def test_the_ends_of_children_and_orphans_are_awaited():
    processes.adopt_orphans()
    started = [subprocess.Popen(["sh", "-c", "sleep 600 & sleep 600 & wait"]) for _ in range(5)]
    spared = subprocess.Popen(["sleep", "600"])
    me = psutil.Process()
    wait_for(lambda: len(me.children(recursive=True)) >= 16, "descendants")
    others = {child.pid for child in me.children()} - {child.pid for child in started}
    try:
        processes.end_children(frozenset(others))
        assert {child.pid for child in me.children()} == others
    finally:
        processes.adopt_orphans(False)
        spared.kill()
        for child in (*started, spared):
            child.wait()


def test_without_pidfds_only_children_get_signals(stranger, monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    kill_tree(stranger.pid)
    assert stranger.status() == psutil.STATUS_SLEEPING
    started = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    kill_tree(started.pid)
    assert started.wait() == -signal.SIGKILL
    started.stdin.close()


def watch(pid):
    """Let the watchdog check a process whose input exceeds its limits. Return what it killed."""
    channel, child = WorkerChannel(), ChildProcess(pid)
    channel.show(0)
    channel.begin_step()
    limits = Limits(timeout_seconds=0.0, memory_bytes=1)
    watchdog = Watchdog(
        channels=[channel],
        workers=[child],
        limits=limits,
        drain=SharedFlag(),
        stop_request=Stop(),
        receive=print,
        warn=print,
        feed=lambda: True,
        is_waiting=lambda: False,
    )
    checks = []
    real = channel.bound_log
    channel.bound_log = lambda: checks.append(real())
    watchdog.start()
    wait_for(lambda: len(checks) > 3, "checks of the watchdog")
    watchdog.stop()
    child.close()
    channel.close()
    return watchdog.killed


def test_the_watchdog_neither_kills_nor_blames_a_dead_worker(stranger):
    """Its id now belongs to another process, and its last input exceeds the timeout."""
    assert watch(stranger.pid) == {}
    assert stranger.status() == psutil.STATUS_SLEEPING


def test_a_worker_that_waits_for_a_disk_is_not_left_suspended(monkeypatch):
    """The signal that suspends it takes effect after the watchdog has stopped waiting for it."""
    stat_of = processes._stat_of

    def waiting(pid):
        state, *others = stat_of(pid)
        return ["D" if state == "T" else state, *others]

    monkeypatch.setattr(processes, "_stat_of", waiting)
    started = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert watch(started.pid) == {}
        assert psutil.Process(started.pid).status() != psutil.STATUS_STOPPED
    finally:
        started.kill()
        started.communicate()
