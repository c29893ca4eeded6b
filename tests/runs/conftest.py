"""Fixtures for tests that make results again: a shared process, and the installed packages."""

import os
from contextlib import nullcontext
from importlib.metadata import packages_distributions

import pytest

from batchmill.core.user_step.code import files
from batchmill.runs import execute_again
from batchmill.runs.shards.process_pool import ShardProcesses


@pytest.fixture(scope="session")
def warm_processes(tmp_path_factory):
    """Return the processes for `warm_process`. One is started now, in a folder of its own."""
    folder, processes = os.getcwd(), ShardProcesses()
    os.chdir(tmp_path_factory.mktemp("warm"))
    try:
        processes.warm_up("")
    finally:
        os.chdir(folder)
    yield processes
    processes.end()


@pytest.fixture
def warm_process(warm_processes, monkeypatch):
    """Make results again in a shard process that the tests share: importing torch takes 2 s.

    The process keeps the modules of steps that it has imported. So each test needs names of its own
    for its modules, and changes a module only before its results are made again.
    """
    monkeypatch.setattr(execute_again, "shard_processes", lambda: nullcontext(warm_processes))


@pytest.fixture(scope="session")
def installed_packages():
    """Return the packages that are installed, by module. Reading all their metadata takes 0.3 s."""
    return packages_distributions()


@pytest.fixture
def known_packages(installed_packages, monkeypatch):
    """Let proofs name the installed packages without reading them again. Tests install none."""
    monkeypatch.setattr(files, "packages_distributions", lambda: installed_packages)
