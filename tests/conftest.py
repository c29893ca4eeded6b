"""What tests of every part share."""

import os
import shutil
import tempfile
import uuid
from functools import partial
from pathlib import Path

import pytest
from live import ask, clean_environment, prefect_server_in, shell_in
from object_store import forget_connections, make_bucket, s3_server

WORDS = {"a.txt": "simple", "b.txt": "scaleable", "c.txt": "preprocessing", "d.txt": "pytorch"}


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A folder with the tutorial's four words and their manifest."""
    folder = tmp_path / "words"
    folder.mkdir()
    for name, word in WORDS.items():
        (folder / name).write_text(word)
    (folder / "manifest.csv").write_text("input\n" + "".join(f"{name}\n" for name in WORDS))
    return folder


def pytest_configure(config):
    """Keep what tests import of Prefect, in this process, away from the user's folder.

    And what torch compiles away from the folder for temporary files.
    """
    config.own_folder = tempfile.mkdtemp(prefix="batchmill-tests-")
    os.environ["PREFECT_HOME"] = config.own_folder
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(config.own_folder, "torch")


def pytest_unconfigure(config):
    shutil.rmtree(config.own_folder, ignore_errors=True)


def pytest_collection_modifyitems(items):
    for item in items:
        for name in ("end_to_end", "cluster"):
            if item.path.is_relative_to(Path(__file__).parent / name):
                item.add_marker(name)


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory):
    """A Prefect server on a free port; gives its API's URL."""
    with prefect_server_in(tmp_path_factory.mktemp("server-home")) as url:
        yield url


@pytest.fixture(scope="session")
def s3(tmp_path_factory):
    """An S3 server; gives the environment that leads to it."""
    with s3_server(tmp_path_factory.mktemp("s3") / "log") as environment:
        yield environment


@pytest.fixture
def bucket(s3, monkeypatch):
    """An empty bucket, which this process and its children find; gives its URL."""
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    forget_connections()
    yield make_bucket(f"bucket-{uuid.uuid4().hex[:12]}")
    forget_connections()


@pytest.fixture
def work(tmp_path):
    """An empty folder to work in."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def bare_shell(work, tmp_path):
    """A shell of a user who has set up no server."""
    with shell_in(work, clean_environment(tmp_path / "home")) as shell:
        yield shell


@pytest.fixture
def shell(work, tmp_path, prefect_server):
    """A shell of a user with a Prefect server."""
    environment = clean_environment(tmp_path / "home") | {"PREFECT_API_URL": prefect_server}
    with shell_in(work, environment) as shell:
        yield shell


@pytest.fixture
def api(prefect_server):
    """Asks the server's API: `api("/flow_runs/filter", {...})`."""
    return partial(ask, prefect_server)


@pytest.fixture
def recordings(work):
    """Debian's spoken WAVs and its desktop's OGG sounds, and one that is no sound."""
    folder = work / "recordings"
    folder.mkdir()
    sources = [*Path("/usr/share/sounds/alsa").glob("*.wav")]
    sources += Path("/usr/share/sounds/freedesktop/stereo").glob("*.oga")
    assert len(sources) > 30, "install alsa-utils and sound-theme-freedesktop (.ci/run does)"
    for source in sources:
        shutil.copy(source, folder)  # Links of the theme are copied as what they lead to.
    return folder
