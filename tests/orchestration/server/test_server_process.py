"""The process of the temporary server ends if it is not needed."""

import os
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.contention import at_once
from harness.live import clean_environment, make_home

from batchmill.orchestration.server.embedded_server import embedded_server, preparing_server
from batchmill.orchestration.server.server_process import (
    NOT_NEEDED,
    PASSWORD,
    auth_string,
    folder_in,
)

PROFILE = 'active = "mine"\n[profiles.mine]\nPREFECT_API_URL = "http://127.0.0.1:9/api"\n'


@pytest.mark.parametrize(
    "where",
    [
        "profile",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("environment", "project")),
    ],
)
@pytest.mark.slow
def test_the_process_ends_if_a_server_is_configured(where, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    environment = clean_environment(home)
    if where == "environment":
        environment["PREFECT_API_URL"] = "http://127.0.0.1:9/api"
    elif where == "profile":
        (home / "profiles.toml").write_text(PROFILE)
    else:
        (tmp_path / "prefect.toml").write_text('[api]\nurl = "http://127.0.0.1:9/api"\n')
    done = subprocess.run(
        [sys.executable, "-P", "-m", "batchmill.orchestration.server.server_process", "0"],
        cwd=tmp_path,
        env=environment,
        input=b"1",  # A server is needed.
        timeout=120,
    )
    assert done.returncode == NOT_NEEDED
    assert not (home / "batchmill").exists()


@pytest.mark.slow
def test_the_process_writes_nothing_until_a_server_is_needed(tmp_path):
    home = tmp_path / "home"
    done = subprocess.run(
        [sys.executable, "-P", "-m", "batchmill.orchestration.server.server_process", "0"],
        cwd=tmp_path,
        env=clean_environment(home),
        stdin=subprocess.DEVNULL,
        timeout=120,
    )
    assert done.returncode == NOT_NEEDED
    # Prefect creates its folder when it is imported.
    assert not (home / "batchmill").exists()
    assert not (home / "prefect.db").exists()


def test_the_credentials_are_random_private_and_the_same_for_all_processes(tmp_path):
    folder = folder_in(tmp_path / "home")

    def check(number):
        (tmp_path / str(number)).write_text(auth_string(folder))

    at_once(8, check)
    seen = {(tmp_path / str(number)).read_text() for number in range(8)}
    assert seen == {auth_string(folder)}
    assert auth_string(folder_in(tmp_path / "other")) not in seen
    assert stat.S_IMODE((folder / PASSWORD).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [path.name for path in folder.iterdir()] == [PASSWORD]


def test_threads_create_the_credentials_once(tmp_path, monkeypatch):
    link, both = os.link, threading.Barrier(2)

    def link_together(*paths):
        both.wait(60)
        link(*paths)

    monkeypatch.setattr(os, "link", link_together)
    folder = folder_in(tmp_path / "home")
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(auth_string, [folder, folder])
    assert first == second == (folder / PASSWORD).read_text()
    assert [path.name for path in folder.iterdir()] == [PASSWORD]


@pytest.mark.slow
def test_a_prepared_server_is_used_by_the_first_request_for_a_server(tmp_path, monkeypatch):
    home = make_home(tmp_path / "home")
    for name, value in clean_environment(home).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    commands, popen = [], subprocess.Popen

    def start(command, **options):
        commands.append(command)
        return popen(command, **options)

    monkeypatch.setattr(subprocess, "Popen", start)
    with preparing_server(), embedded_server(home):
        pass
    assert len(commands) == 1
