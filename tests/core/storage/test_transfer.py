"""Files are moved with one request each, and arrive whole, even if the store fails meanwhile."""

import gc
import itertools
import os
import sys
import threading
from collections import Counter
from functools import partial

import fsspec
import pytest
from harness.crashing import in_child
from harness.jobs import run_job
from harness.live import STEP_MODULES
from harness.s3_proxy import Reply

from batchmill import StoreError
from batchmill.core.security.credentials import Access, access_to
from batchmill.core.storage import obstore_s3, remote, transfer

PLANNED = remote.FileStat(5, 0, "none")


@pytest.fixture
def put(bucket):
    """Return a function that creates an object, and returns its URL and its description."""

    def create(key, data):
        url = f"{bucket}/{key}"
        fsspec.filesystem("s3").pipe_file(url, data)
        return url, remote.stat(url)

    return create


def in_worker(function):
    """Call a function in a fork that may use obstore, as a DataLoader worker does."""

    def run():
        # A run does this before it forks. Otherwise the garbage collector closes the parent's
        # connections in the child. Each takes a second.
        gc.freeze()
        obstore_s3.use_obstore()
        function()
        assert "obstore" in sys.modules

    assert in_child(run) == 0


def fetch_in_vain(url, path):
    with pytest.raises(StoreError):
        fetched(url, path)


def fetched(url, path):
    identity = transfer.fetch_planned(url, str(path), PLANNED)
    return path.read_bytes(), identity.etag


def test_a_small_file_is_fetched_and_uploaded_with_one_request(proxied, put, bucket, tmp_path):
    url, stat = put("a.txt", b"content")
    with proxied() as proxy:

        def move():
            assert fetched(url, tmp_path / "a.txt") == (b"content", stat.etag)
            transfer.upload(str(tmp_path / "a.txt"), f"{bucket}/b.txt")

        in_worker(move)
        assert Counter(request.method for request in proxy.requests) == {"GET": 1, "PUT": 1}
    assert remote.read(f"{bucket}/b.txt") == b"content"
    assert remote.stat(f"{bucket}/b.txt").etag == stat.etag


def test_a_large_file_is_uploaded_in_parts(bucket, tmp_path):
    data = os.urandom(2**20) * 20
    (tmp_path / "large.bin").write_bytes(data)

    def move():
        transfer.upload(str(tmp_path / "large.bin"), f"{bucket}/large.bin")
        assert fetched(f"{bucket}/large.bin", tmp_path / "back")[0] == data

    in_worker(move)
    assert remote.stat(f"{bucket}/large.bin").etag.endswith("-3")


def test_any_key_is_fetched_and_uploaded(put, bucket, tmp_path):
    keys = ["a b.txt", "é#1?.txt", "a%20b", "..b", "x//y", "./x", "a\tb", "[1]*"]
    contents = {key: f"content of {key}".encode() for key in keys}
    created = {key: put(f"in/{key}", contents[key]) for key in keys}

    def move():
        for number, (key, (url, stat)) in enumerate(created.items()):
            path = tmp_path / str(number)
            assert fetched(url, path) == (contents[key], stat.etag), key
            transfer.upload(str(path), f"{bucket}/out/{key}")

    in_worker(move)
    assert {key: remote.read(f"{bucket}/out/{key}") for key in keys} == contents


def test_a_fork_of_a_process_that_used_obstore_uses_fsspec(put, tmp_path):
    """obstore would hang in such a fork."""
    url, stat = put("a.txt", b"content")

    def fork():
        fetched(url, tmp_path / "a")
        assert in_child(fetch_again) == 0

    def fetch_again():
        obstore_s3.use_obstore()
        assert fetched(url, tmp_path / "b") == (b"content", stat.etag)

    in_worker(fork)
    assert (tmp_path / "b").exists()


def test_settings_read_before_they_were_forgotten_are_not_used_again(put, monkeypatch):
    """While a thread opens a store, another one learns that the credentials have expired."""
    url, _ = put("a.txt", b"content")
    opened, open_store = [], obstore_s3._open_store
    other = threading.Thread(target=obstore_s3.forget_settings)

    def open_slowly(*args):
        opened.append(args)
        if len(opened) == 1:
            other.start()
            other.join(0.2)
        return open_store(*args)

    def use():
        obstore_s3.store_for(url)
        other.join()
        obstore_s3.store_for(url)
        assert len(opened) == 2

    monkeypatch.setattr(obstore_s3, "_open_store", open_slowly)
    in_worker(use)


def test_other_processes_use_fsspec(put, tmp_path):
    url, stat = put("a.txt", b"content")
    assert fetched(url, tmp_path / "a") == (b"content", stat.etag)
    assert "obstore" not in sys.modules


def test_an_option_that_only_s3fs_has_is_respected(put, tmp_path):
    url, _ = put("a.txt", b"content")

    def fetch():
        obstore_s3.use_obstore()
        assert fetched(url, tmp_path / "a")[0] == b"content"
        assert "obstore" not in sys.modules

    with access_to([Access(url=url, options={"requester_pays": True})]):
        assert in_child(fetch) == 0


def test_credentials_of_a_saved_store_and_of_a_profile_are_used(
    proxied, put, tmp_path, monkeypatch
):
    url, _ = put("a.txt", b"content")
    (tmp_path / "credentials").write_text(
        "[mine]\naws_access_key_id = OFPROFILE\naws_secret_access_key = x\n"
    )
    with proxied() as proxy:
        options = {"key": "OFSTORE", "secret": "y", "client_kwargs": {"region_name": "eu-west-1"}}
        with access_to([Access(url=url, options=options)]):
            in_worker(lambda: fetched(url, tmp_path / "a"))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
        with access_to([Access(url=url, options={"profile": "mine"})]):
            in_worker(lambda: fetched(url, tmp_path / "a"))
        with access_to([Access(url=url, options={"anon": True})]):
            in_worker(partial(fetch_in_vain, url, tmp_path / "a"))
    assert [request.signer for request in proxy.requests] == ["OFSTORE", "OFPROFILE", ""]


def once(reply, method="GET", key="a.bin"):
    """Return a reaction that gives this reply to the first request for a key."""
    replies = [reply]

    def react(request):
        if (request.method, request.path.rpartition("/")[2]) == (method, key) and replies:
            return replies.pop()
        return None

    return react


@pytest.mark.usefixtures("short_pauses")
def test_a_body_that_is_cut_is_fetched_to_its_end(proxied, put, tmp_path):
    data = os.urandom(2**20) * 5
    url, stat = put("a.bin", data)
    with proxied(once(Reply(cut=0.5))) as proxy:
        in_worker(lambda: check_equal(fetched(url, tmp_path / "a"), (data, stat.etag)))
        assert len(proxy.requests) == 2


def check_equal(found, expected):
    assert found == expected


@pytest.mark.usefixtures("short_pauses")
def test_a_file_that_changes_during_its_fetch_is_never_mixed(proxied, put, tmp_path):
    old, new = b"old " * 2**20, b"new " * 2**20
    url, _ = put("a.bin", old)
    address = os.environ["AWS_ENDPOINT_URL"]

    def change(request):
        reply = cut(request)
        if not reply and request.method == "GET" and not changed:
            changed.append(True)
            files = fsspec.filesystem("s3", endpoint_url=address, skip_instance_cache=True)
            files.pipe_file(url, new)
        return reply

    changed, cut = [], once(Reply(cut=0.5))
    with proxied(change):
        in_worker(lambda: check_equal(fetched(url, tmp_path / "a")[0], new))
    assert changed


def test_a_large_file_is_fetched_in_parts(proxied, put, tmp_path):
    data = os.urandom(2**20) * 37
    url, stat = put("a.bin", data)
    with proxied() as proxy:
        in_worker(lambda: check_equal(fetched(url, tmp_path / "a"), (data, stat.etag)))
        # The first request ends after 8 MiB.
        assert [request.method for request in proxy.requests] == ["GET"] * 5


@pytest.mark.usefixtures("short_pauses")
def test_a_large_file_that_changes_during_its_fetch_is_never_mixed(proxied, put, tmp_path):
    old, new = b"old " * 9 * 2**20, b"new " * 9 * 2**20
    url, _ = put("a.bin", old)
    address = os.environ["AWS_ENDPOINT_URL"]
    changing = threading.Lock()

    def change(request):
        with changing:
            requests.append(request)
            if len(requests) == 3:
                files = fsspec.filesystem("s3", endpoint_url=address, skip_instance_cache=True)
                files.pipe_file(url, new)

    requests = []
    with proxied(change):
        in_worker(lambda: check_equal(fetched(url, tmp_path / "a")[0], new))
    assert len(requests) > 5


@pytest.mark.usefixtures("short_pauses")
def test_requests_are_repeated_while_the_store_fails(proxied, put, bucket, tmp_path):
    url, stat = put("a.bin", b"content")
    failures = [Reply(503, b"<Error><Code>SlowDown</Code></Error>")] * 6
    with proxied(lambda request: failures.pop() if failures else None):

        def move():
            assert fetched(url, tmp_path / "a") == (b"content", stat.etag)
            transfer.upload(str(tmp_path / "a"), f"{bucket}/b.bin")

        in_worker(move)
    assert not failures


@pytest.mark.parametrize(
    ("reply", "cause", "text"),
    [
        (None, FileNotFoundError, "there is no such file"),
        (
            Reply(
                403,
                b"<Error><Code>InvalidObjectState</Code><Message>in the archive</Message></Error>",
            ),
            PermissionError,
            "in the archive",
        ),
    ],
)
def test_errors_have_the_same_types_as_those_of_fsspec(
    proxied, bucket, tmp_path, reply, cause, text
):
    def fetch():
        with pytest.raises(StoreError, match=text) as caught:
            fetched(f"{bucket}/a.bin", tmp_path / "a")
        assert isinstance(caught.value.__cause__, cause)
        assert not caught.value.passing

    with proxied(lambda request: reply):
        in_worker(fetch)


def test_wrong_settings_are_reported(put, tmp_path):
    url, _ = put("a.txt", b"content")
    with (
        access_to([Access(url=url, options={"profile": "nosuch"})]),
        pytest.raises(StoreError, match="nosuch"),
    ):
        obstore_s3.prepare([url])


@pytest.mark.slow
def test_requests_of_a_run_and_of_an_unchanged_run(proxied, put, bucket, monkeypatch):
    """The first run sends one GET for each input and one PUT for each output.

    The unchanged run sends no request for a single object. Both send the same number of other
    requests for any number of inputs.
    """
    monkeypatch.chdir(STEP_MODULES)
    monkeypatch.setattr("batchmill.core.ledger.committer.COMMIT_SECONDS", 3600.0)
    monkeypatch.setattr("batchmill.core.ledger.lease.BEAT_SECONDS", 3600.0)

    def run(inputs):
        with proxied() as proxy:
            job = (f"{bucket}/in{inputs}", "steps_under_test:copy", f"{bucket}/out{inputs}")
            assert run_job(*job, num_workers=1).outcomes == {"ok": inputs}
        return proxy.requests

    def count(inputs):
        names = [f"{bucket}/in{inputs}/{number:03d}.txt" for number in range(inputs)]
        fsspec.filesystem("s3").pipe(dict.fromkeys(names, b"word"))
        first = Counter(
            f"{request.method} {request.path.split('/')[2]}"
            if request.path.endswith(".txt")
            else "others"
            for request in run(inputs)
        )
        with monkeypatch.context() as listing:
            listing.setattr("batchmill.core.storage.remote.FEW", 3)
            unchanged = run(inputs)
        assert not [request for request in unchanged if request.path.endswith(".txt")]
        return first, len([request for request in unchanged if "/parts/" not in request.path])

    (few, few_unchanged), (more, more_unchanged) = count(5), count(45)
    others = more.pop("others") - few.pop("others")
    assert few == {"GET in5": 5, "PUT out5": 5}
    assert more == {"GET in45": 45, "PUT out45": 45}
    assert others < 10
    # Two threads list a folder at the same time, or one of them uses the list of the other.
    assert abs(more_unchanged - few_unchanged) <= 1
    assert more_unchanged <= 62


class Rounds:
    """A reaction that counts the requests that arrive while no other request is open.

    This is the number of requests that a run sends one after the other.
    """

    def __init__(self, seconds):
        self.before_inputs, self.all = None, 0
        self._seconds = seconds
        self._open, self._lock = 0, threading.Lock()

    def __call__(self, request):
        with self._lock:
            self.all += self._open == 0
            self._open += 1
            if request.method == "GET" and request.path.endswith(".txt"):
                self.before_inputs = self.before_inputs or self.all
        # Concurrent requests arrive during this time, unless a thread is late.
        threading.Event().wait(self._seconds)
        with self._lock:
            self._open -= 1


@pytest.mark.slow
def test_requests_one_after_the_other(proxied, put, bucket, monkeypatch):
    """At 30 ms, they are half a second before the first input, and one second after the last."""
    monkeypatch.chdir(STEP_MODULES)
    monkeypatch.setattr("batchmill.core.ledger.committer.COMMIT_SECONDS", 3600.0)
    monkeypatch.setattr("batchmill.core.ledger.lease.BEAT_SECONDS", 3600.0)
    put("m.csv", b"input\na.txt\n")

    def count(seconds):
        job, counts = (f"{bucket}/m.csv", "steps_under_test:copy", f"{bucket}/out{seconds}"), []
        # The first run makes the dataset. The second executes the input because it has changed.
        for word in (b"word", b"other word"):
            put("a.txt", word)
            rounds = Rounds(seconds)
            with proxied(rounds):
                assert run_job(*job, num_workers=1).executed == 1
            counts.append((rounds.before_inputs, rounds.all))
        return counts

    # A late thread can only add rounds, so one count within the limits is enough.
    found = []
    for seconds in (0.1, 0.2, 0.4):
        found.append(count(seconds))
        if all(before <= 20 and every <= 51 for before, every in found[-1]):
            return
    raise AssertionError(found)


def test_fsspec_fetches_a_file_again_that_changed_meanwhile(put, tmp_path, monkeypatch):
    url, _ = put("a.txt", b"0")
    stat, versions = remote.stat, itertools.count(1)

    def change(changed):
        if next(versions) < 3:
            remote.write(url, b"%d" % next(versions))
        return stat(changed)

    monkeypatch.setattr(remote, "stat", change)
    assert fetched(url, tmp_path / "a") == (b"2", stat(url).etag)
