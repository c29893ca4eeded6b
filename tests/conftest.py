"""Options, markers and fixtures for all tests."""

import os
import random
import shutil
import sys
import uuid
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from harness import azure_blobs
from harness.google_storage import google_environment, make_google_bucket, start_google_storage
from harness.live import (
    ROOT,
    RUN_FOLDER,
    STEP_MODULES,
    ask,
    clean_environment,
    end_shared_servers,
    make_home,
    prefect_server_in,
    shared_server,
    shell_in,
    start_prefect_server,
)
from harness.object_store import forget_connections, make_bucket, s3_environment, start_s3_server
from harness.s3_proxy import s3_proxy

from batchmill.core.storage.scratch import lock_scratch_folder

# Fixtures that start servers or run the installed command.
SERVICES = {"prefect_server", "s3", "google_storage", "shell", "bare_shell"}
# This program runs in a venv of its own, with other packages.
collect_ignore = ["support/mutants.py"]
# After this many seconds a test with servers or commands, a long version or a system test counts as
# hanging.
SERVER_SECONDS, LONG_SECONDS = 300, 900
WORDS = {"a.txt": "simple", "b.txt": "scaleable", "c.txt": "preprocessing", "d.txt": "pytorch"}


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """Return a folder with the tutorial's four words and their manifest."""
    folder = tmp_path / "words"
    folder.mkdir()
    for name, word in WORDS.items():
        (folder / name).write_text(word)
    (folder / "manifest.csv").write_text("input\n" + "".join(f"{name}\n" for name in WORDS))
    return folder


@pytest.fixture
def inputs(tmp_path, monkeypatch):
    """Return a folder with ten inputs and their manifest. `support/step_modules` is importable."""
    monkeypatch.chdir(STEP_MODULES)
    folder = tmp_path / "data"
    (folder / "in").mkdir(parents=True)
    rows = ["input,label"]
    for number in range(10):
        name = f"in/{number}.txt"
        (folder / name).write_text(f"content of {name}")
        rows.append(f"{name},{number}")
    (folder / "m.csv").write_text("\n".join(rows) + "\n")
    return folder


def pytest_addoption(parser):
    parser.addoption(
        "--long", action="store_true", help="also run the long versions: all samples, all variants"
    )
    parser.addoption(
        "--part", metavar="K/N", help="run only part K of N of the tests that --long adds"
    )


def pytest_configure(config):
    """Use a temporary folder for Prefect's home, and for the files that torch compiles.

    Otherwise Prefect in this process would use the user's home. A part implies `--long`.
    """
    if config.option.part:
        config.option.long = True
    # The next test run removes this folder if this process is killed.
    folder, config.folder_lock = lock_scratch_folder("batchmill-test-run-")
    config.own_folder = str(folder)
    # The worker processes of pytest-xdist inherit this variable.
    os.environ.setdefault(RUN_FOLDER, config.own_folder)
    os.environ["PREFECT_HOME"] = config.own_folder
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(config.own_folder, "torch")


def pytest_unconfigure(config):
    """End the shared servers, and delete the folder of this process."""
    end_shared_servers(config.own_folder)
    shutil.rmtree(config.own_folder, ignore_errors=True)
    os.close(config.folder_lock)


@pytest.hookimpl(tryfirst=True)  # Before xdist reads the groups.
def pytest_collection_modifyitems(config, items):
    """Mark tests by folder and fixtures; deselect the long versions unless `--long` is given."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here / "system"):
            item.add_marker("system")
            # The tests with Ray clusters share one cluster, so they run in one process.
            is_cluster = item.path.is_relative_to(here / "system" / "cluster")
            item.add_marker(pytest.mark.xdist_group("cluster" if is_cluster else item.path.stem))
        is_outside = item.path.is_relative_to(here / "end_to_end")
        if is_outside or SERVICES & set(getattr(item, "fixturenames", ())):
            item.add_marker("end_to_end")
        is_long = config.option.long and is_long_version(item)
        if is_long and item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.timeout(0))
        elif is_long or item.get_closest_marker("system"):
            item.add_marker(pytest.mark.timeout(LONG_SECONDS))
        elif item.get_closest_marker("end_to_end"):
            item.add_marker(pytest.mark.timeout(SERVER_SECONDS))
    if config.option.part:
        kept = part_of_long(items, *parse_part(config.option.part))
    elif config.option.long:
        return
    else:
        kept = {item for item in items if not item.get_closest_marker("long")}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def parse_part(text):
    """Return the numbers K and N of a part K/N."""
    number, slash, count = text.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise pytest.UsageError(f"--part {text}: expected K/N, for example 3/6.")
    return int(number), int(count)


def is_long_version(item):
    """Return whether `--long` adds this test, or gives it more to do."""
    return item.get_closest_marker("long") or "is_long" in getattr(item, "fixturenames", ())


def part_of_long(items, number, count):
    """Return part `number` of `count` of the tests that have a long version.

    The tests of a file are spread over all parts, so that the parts take about the same time. Tests
    marked `soak` are in no part.
    """
    added = [
        item for item in items if is_long_version(item) and not item.get_closest_marker("soak")
    ]
    return set(sorted(added, key=lambda item: item.nodeid)[number - 1 :: count])


@pytest.fixture(autouse=True)
def leave_no_trace(tmp_path_factory):
    """Restore the working directory and `sys.path`; unload the steps that the test imported.

    The next test may import another module of the same name.
    """
    path, folder, modules = list(sys.path), Path.cwd(), set(sys.modules)
    yield
    os.chdir(folder)
    sys.path[:] = path
    folders = str(tmp_path_factory.getbasetemp()), str(ROOT / "examples")
    new = {name: sys.modules[name] for name in set(sys.modules) - modules}
    # A package without __init__.py has no file. Its path is found with the help of its parent.
    places = {
        name: [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
        for name, module in new.items()
    }
    for name, found in places.items():
        if any(str(place).startswith(folders) for place in found):
            del sys.modules[name]


@pytest.fixture
def is_long(request):
    """Return whether the long versions run."""
    return request.config.getoption("--long")


@pytest.fixture
def seed(request):
    """Return the seed of this test run, which pytest prints; `--randomly-seed=N` sets it."""
    return request.config.getoption("randomly_seed")


@pytest.fixture
def sample(seed, is_long):
    """Return a function that samples `count` items; the long version returns all items."""
    chance = random.Random(seed)
    return lambda found, count: list(found) if is_long else chance.sample(list(found), count)


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory, request):
    """Yield the API's URL of a Prefect server on a free port.

    All processes of a test run share the server. Long versions deploy the same names from several
    processes, so each process has its own server.
    """
    if not request.config.getoption("--long"):
        yield shared_server("prefect-server", start_prefect_server)
        return
    with prefect_server_in(tmp_path_factory.mktemp("server-home")) as url:
        yield url


@pytest.fixture
def used_server(prefect_server, monkeypatch):
    """Let the runs of this process and its children use the shared Prefect server."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    monkeypatch.setenv("PREFECT_API_URL", prefect_server)
    with temporary_settings({PREFECT_API_URL: prefect_server}):
        yield prefect_server


@pytest.fixture(scope="module")
def own_prefect_server(tmp_path_factory, request):
    """Yield the URL of a server only for this module, whose names would disturb other modules.

    Without the long versions, no other module uses these names, and the server is shared.
    """
    if not request.config.getoption("--long"):
        yield shared_server("prefect-server", start_prefect_server)
        return
    with prefect_server_in(tmp_path_factory.mktemp("own-server")) as url:
        yield url


@pytest.fixture(scope="session")
def s3():
    """Return the environment variables of an S3 server that all processes of a test run share."""
    return s3_environment(shared_server("s3-server", start_s3_server))


@pytest.fixture
def bucket(s3, monkeypatch):
    """Create an empty bucket for this process and its children; yield its URL."""
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    forget_connections()
    yield make_bucket(f"bucket-{uuid.uuid4().hex[:12]}")
    forget_connections()


@pytest.fixture(scope="session")
def azurite():
    """Return the URL of an Azure server that all processes of a test run share."""
    return shared_server("azurite", azure_blobs.start_azurite)


@pytest.fixture
def container(azurite, monkeypatch):
    """Create an empty container of Azure for this process and its children; yield its URL."""
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azure_blobs.connection_string(azurite))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    forget_connections()
    yield azure_blobs.make_container(f"container-{uuid.uuid4().hex[:12]}")
    forget_connections()


@pytest.fixture(scope="session")
def google_storage():
    """Return the URL of a Google server that all processes of a test run share."""
    return shared_server("google-storage", start_google_storage)


@pytest.fixture
def google_bucket(google_storage, tmp_path, monkeypatch):
    """Create an empty bucket of Google for this process and its children; yield its URL."""
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    for name, value in google_environment(google_storage, tmp_path / "no-settings").items():
        monkeypatch.setenv(name, value)
    forget_connections()
    yield make_google_bucket(google_storage, f"bucket-{uuid.uuid4().hex[:12]}")
    forget_connections()


@pytest.fixture
def proxied(bucket, monkeypatch):
    """Return a context manager: a proxy that all processes use as their S3 server."""

    @contextmanager
    def start(react=lambda request: None):
        with (
            s3_proxy(os.environ["AWS_ENDPOINT_URL"], react) as proxy,
            monkeypatch.context() as set_,
        ):
            set_.setenv("AWS_ENDPOINT_URL", proxy.url)
            forget_connections()
            yield proxy
        forget_connections()

    return start


@pytest.fixture
def work(tmp_path):
    """Return an empty working folder."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def bare_shell(work, tmp_path):
    """Yield a shell of a user who has no Prefect server."""
    with shell_in(work, clean_environment(make_home(tmp_path / "home"))) as shell:
        yield shell


@pytest.fixture
def shell(work, tmp_path, prefect_server):
    """Yield a shell of a user with a Prefect server."""
    environment = clean_environment(tmp_path / "home") | {"PREFECT_API_URL": prefect_server}
    with shell_in(work, environment) as shell:
        yield shell


@pytest.fixture
def api(prefect_server):
    """Return a function that calls the server's API: `api("/flow_runs/filter", {...})`."""
    return partial(ask, prefect_server)


@pytest.fixture
def recordings(work):
    """Return a folder with 48 recordings: four copies of each example."""
    folder = work / "recordings"
    folder.mkdir()
    for source in sorted((ROOT / "examples" / "recordings").iterdir()):
        if source.suffix in {".wav", ".flac", ".ogg", ".mp3"}:
            for copy in range(4):
                shutil.copy(source, folder / f"{source.stem}-{copy}{source.suffix}")
    return folder
