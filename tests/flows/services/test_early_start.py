"""Ray and Prefect's server begin to start before Prefect is imported."""

import subprocess
import sys
from contextlib import nullcontext, suppress

import psutil
import pytest
import ray
from batchmill.flows.services import early_start as module
from batchmill.flows.services.early_start import early_start
from batchmill.flows.services.embedded_server import embedded_server
from live import wait_for


@pytest.fixture
def home(tmp_path, monkeypatch):
    for name in ("PREFECT_API_URL", "PREFECT_PROFILE", "PREFECT_PROFILES_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "prefect"


def test_it_does_without_prefect_and_torch():
    code = (
        "import sys, batchmill.flows.services.early_start\n"
        "print({'prefect', 'torch'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.fixture
def servers():
    """Return a function that lists the servers that were not there before."""
    before = set(running_servers())
    return lambda: [process for process in running_servers() if process not in before]


def running_servers():
    """Yield the servers that this process has started."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # It has just ended.
            if "server" in process.cmdline():
                yield process


def test_both_are_there_for_who_comes_later(home, servers):
    with early_start():
        with embedded_server(home) as url:
            assert url.startswith("http://127.0.0.1:")
            assert len(servers()) == 1
        assert len(servers()) == 1, "the block's end is its end"
    assert not servers()
    assert home.stat().st_mode & 0o077 == 0, "others can read its database"
    wait_for(lambda: not ray.is_initialized(), "the end of Ray")


def test_a_server_that_nobody_came_to_use_ends(home, servers):
    with early_start():
        wait_for(servers, "the server's beginning")
    wait_for(lambda: not servers(), "the server's end")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (".env", "PREFECT_HOME=elsewhere\n"),
        ("prefect.toml", 'home = "elsewhere"\n'),
        ("pyproject.toml", '[tool.prefect]\nhome = "elsewhere"\n'),
        (".env", "PREFECT_API_URL=http://h/api\n"),
    ],
)
def test_no_server_where_it_or_its_folder_may_be_another(home, monkeypatch, file, text):
    monkeypatch.setattr(module, "_server", lambda home: pytest.fail("a server is begun"))
    monkeypatch.setattr("batchmill.flows.services.private_ray.PrivateRay.start", lambda self: None)
    (home.parent / file).write_text(text)
    with early_start():
        pass


def test_a_project_that_depends_on_prefect_is_no_setting(home, monkeypatch):
    begun = []
    monkeypatch.setattr(module, "_server", lambda home: begun.append(home) or nullcontext())
    monkeypatch.setattr("batchmill.flows.services.private_ray.PrivateRay.start", lambda self: None)
    (home.parent / "pyproject.toml").write_text(
        '[project]\nname = "mine"\ndependencies = ["prefect"]\nurls.homepage = "http://h"\n'
    )
    with early_start():
        pass
    assert begun == [home]
