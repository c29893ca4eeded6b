"""Retries, permissions and credentials. test_store_contract tests what all stores share."""

import errno
import os
import pickle
import socket
import stat
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from harness.contention import at_once
from harness.live import serving

from batchmill import StoreError
from batchmill.core.security.credentials import Access, access_to, options_for
from batchmill.core.security.redaction import without_secrets
from batchmill.core.storage import LocalStore, remote
from batchmill.core.storage.fingerprints import content_of
from batchmill.core.storage.url_file_system import connected


def test_attempts_that_begin_and_end_together_get_their_folders(tmp_path):
    """The last attempt that ends removes the common folder, while others create theirs."""

    def attempt(number):
        store = LocalStore(tmp_path)
        for repetition in range(300):
            with store.staging(f"{number}-{repetition}") as folder:
                (folder / "x").touch()
        return True

    assert at_once(4, attempt) == 4


@pytest.mark.parametrize(("error", "tries"), [(errno.EIO, 3), (errno.EACCES, 1)])
def test_a_passing_error_is_retried(tmp_path, monkeypatch, error, tries):
    monkeypatch.setattr("batchmill.core.storage.retries.retry_local.pauses", (0.0, 0.0))
    count = 0

    def fail(file):
        nonlocal count
        count += 1
        raise OSError(error, "no")

    with pytest.raises(StoreError, match="no"):
        LocalStore(tmp_path).write_atomic("a", fail)
    assert count == tries
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.exists("a/b"),
        lambda store: store.names("a"),
        lambda store: store.links("a"),
        lambda store: list(store.files("a")),
        lambda store: list(store.sizes(["a/b"])),
        lambda store: store.content_of("a/b"),
        lambda store: store.remove("a"),
        lambda store: store.staging("1").__enter__(),
    ],
)
def test_one_stale_handle_is_no_error(tmp_path, monkeypatch, call):
    store = LocalStore(tmp_path)
    store.write("a/b", b"x")
    errors = [OSError(errno.ESTALE, "Stale file handle")]

    def stale_once(function):
        def call_once(*args, **options):
            if errors:
                raise errors.pop()
            return function(*args, **options)

        return call_once

    with monkeypatch.context() as stale:
        stale.setattr("batchmill.core.storage.retries.retry_local.pauses", (0.0,))
        stale.setattr(os, "open", stale_once(os.open))
        stale.setattr(os, "lstat", stale_once(os.lstat))
        call(store)
    assert errors == []


@pytest.mark.parametrize("damage", [False, True])
def test_outputs_from_another_disk_are_copied(tmp_path, other_disk, damage):
    """The folder `files` may be the mount point of its own disk."""
    store = LocalStore(tmp_path)
    (tmp_path / "files").mkdir()
    for times in (1, 2):
        staged = other_disk / "staged"
        (staged / "y").mkdir(parents=True)
        (staged / "y" / "x").write_text("content")
        store.put_folder(staged, "files/input", {"y/x": content_of(str(staged / "y" / "x"))})
        assert not staged.exists()
        if damage and times == 1:
            (tmp_path / "files" / "input" / "y" / "x").write_text("CONTENT")
    assert list(store.files("files")) == ["files/input/y/x"]
    assert store.read("files/input/y/x") == b"content"
    assert store.names("files") == os.listdir(tmp_path / "files") == ["input"]


@pytest.fixture
def other_disk(tmp_path):
    """Return a temporary folder on another file system."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system")
    with TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


def test_a_file_as_root_raises_store_error(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="file"):
        LocalStore(tmp_path / "file").write("x", b"")


def test_files_have_the_default_permissions(tmp_path):
    LocalStore(tmp_path).write("a", b"")
    (tmp_path / "usual").write_bytes(b"")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == (
        stat.S_IMODE((tmp_path / "usual").stat().st_mode)
    )


def test_the_innermost_store_gives_the_options_of_a_url():
    lab = Access(url="s3://lab/sets", options={"key": "of-the-lab"})
    inner = Access(url="s3://lab/sets/private", options={"key": "private"})
    with access_to([lab, inner]):
        assert options_for("s3://lab/sets/clips/a.wav") == {"key": "of-the-lab"}
        assert options_for("s3://lab/sets/private/a.wav") == {"key": "private"}
        assert options_for("s3://lab/sets/privately/a.wav") == {"key": "of-the-lab"}
        with access_to([Access(url="s3://lab/in", options={"key": "of-inputs"})]):
            assert options_for("s3://lab/in/a.wav") == {"key": "of-inputs"}
        assert options_for("s3://lab/in/a.wav") == {"key": "private"}
        assert options_for("s3://laboratory/sets/a.wav") == {}
        assert options_for("gs://lab/sets/a.wav") == {}
    assert options_for("s3://lab/sets/clips/a.wav") == {}


def test_the_options_of_an_equal_store_stay():
    lab, other = (Access(url="s3://lab", options={"key": key}) for key in ("lab", "other"))
    with access_to([lab]), access_to([other]):
        with access_to([lab]):
            assert options_for("s3://lab/in") == {"key": "lab"}
        assert options_for("s3://lab/in") == {"key": "other"}


def test_errors_contain_no_part_of_a_connection_string_of_azure(monkeypatch):
    text = "AccountName=lab;{}=open-sesame;BlobEndpoint=http://host"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text.format("AccountKey"))
    options = {"connection_string": text.format("SharedAccessSignature").replace("open", "shut")}
    with access_to([Access(url="memory://lab", options=options)]):
        assert without_secrets("lab: open-sesame, shut-sesame") == "lab: ***, ***"


def test_errors_do_not_contain_the_options_of_a_store():
    options = {"endpoint_url": "http://host", "connection_string": "AccountKey=open-sesame"}
    nested = {"client_kwargs": {"headers": ["bearer-of-news"]}}
    lab = Access(url="memory://lab", options=options | nested)
    with access_to([lab]), pytest.raises(StoreError) as raised, connected("memory://lab/a"):
        raise OSError("http://host: AccountKey=open-sesame, bearer-of-news")
    told = str(raised.value)
    assert "http://host: ***, ***" in told
    assert "sesame" not in told
    assert "bearer" not in told


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (FileNotFoundError("open-sesame"), FileNotFoundError),
        (PermissionError(errno.EACCES, "open-sesame"), PermissionError),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "open-sesame"), ValueError),
        (ConnectionResetError("http://corp:open-sesame@host"), OSError),
        (KeyError("a", "open-sesame"), Exception),
    ],
)
def test_the_cause_of_an_error_keeps_its_type_without_secrets(raised, kind):
    lab = Access(url="memory://lab", options={"key": "open-sesame", "token": "sesame"})
    with access_to([lab]), pytest.raises(StoreError) as caught, connected("memory://lab/a"):
        raise raised
    assert type(caught.value.__cause__) is kind
    assert type(raised).__name__ in str(caught.value.__cause__)
    assert "sesame" not in "".join(traceback.format_exception(caught.value))
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.passing) == (str(caught.value), caught.value.passing)


@pytest.mark.parametrize(
    "options",
    [
        {"anon": True, "endpoint_url": "http://corp:open-sesame@{host}"},
        {"anon": True, "endpoint_url": "http://corp:open/sesame@{host}"},
        {"anon": True, "client_kwargs": {"endpoint_url": "http://{host}/api/open-sesame"}},
    ],
)
def test_errors_do_not_contain_secrets_of_an_endpoint_url(options, monkeypatch):
    monkeypatch.setattr("batchmill.core.storage.retries.retry_remote.pauses", ())
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{nobody.getsockname()[1]}"
        lab = Access(
            url="s3://lab",
            options=filled_in(options, host) | {"config_kwargs": {"retries": {"max_attempts": 0}}},
        )
        with access_to([lab]), pytest.raises(StoreError) as caught:
            remote.read("s3://lab/a")
    assert "sesame" not in "".join(traceback.format_exception(caught.value))


def filled_in(options, host):
    if isinstance(options, dict):
        return {name: filled_in(value, host) for name, value in options.items()}
    return options.format(host=host) if isinstance(options, str) else options


CODE = b"<Error><Code>PreconditionFailed</Code><Message>exists</Message></Error>"
CONDITION = CODE.replace(b"</Error>", b"<Condition>If-None-Match</Condition></Error>")


@pytest.mark.parametrize("body", [b"", CODE, CONDITION], ids=["empty", "code", "condition"])
def test_all_servers_may_say_in_their_own_way_that_a_file_exists(body):
    """AWS names the condition that failed. Other servers send less."""

    class Refuse(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # It permits the client to send the content.

        def do_PUT(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(412 if self.headers["If-None-Match"] == "*" else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Refuse)) as server:
        endpoint = f"http://127.0.0.1:{server.server_port}"
        lab = Access(url="s3://lab", options={"anon": True, "endpoint_url": endpoint})
        with access_to([lab]):
            assert remote.create("s3://lab/a", b"new") is False


def test_the_disks_of_files_and_of_packs_are_synced(tmp_path, monkeypatch):
    """Each may be the mount point of a disk of its own."""
    synced = []
    monkeypatch.setattr("batchmill.core.storage.contained_paths.sync_file_system", synced.append)
    monkeypatch.setattr(os, "fsync", synced.append)
    store = LocalStore(tmp_path)
    for name in ("files/a.1/x", "packs/1.tar"):
        store.write(name, b"x" * 1024)
    synced.clear()
    store.sync(["files/a.1/x", "packs/1.tar/512-1/x"])
    assert synced[0] == str(tmp_path / "files")
    assert len(synced) == 3, "the pack and its folder"
