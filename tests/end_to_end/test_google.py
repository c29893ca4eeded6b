"""Manifests, inputs and datasets work in a bucket of Google as in a folder."""

import json
import re
import threading
import uuid
from contextlib import contextmanager

import pytest
from harness.google_storage import google_environment, make_google_bucket, make_service_account
from harness.jobs import run_job
from harness.object_store import (
    COPY,
    check_command,
    check_dataset,
    check_listing,
    check_names,
    forget_connections,
    upload,
)
from harness.s3_proxy import Reply, s3_proxy

from batchmill import StoreError
from batchmill.core.security.credentials import Access, access_to
from batchmill.core.storage import provider_requests, remote


@pytest.fixture
def data(inputs, google_bucket):
    """Upload the inputs and the manifest, and return the URL."""
    return upload(inputs, f"{google_bucket}/data")


@pytest.fixture
def proxied_google(google_bucket, google_storage, monkeypatch):
    """Return a context manager: a proxy that all processes use as their Google server."""

    @contextmanager
    def start(react):
        with s3_proxy(google_storage, react) as proxy, monkeypatch.context() as set_:
            set_.setenv("STORAGE_EMULATOR_HOST", proxy.url)
            yield proxy

    return start


@pytest.mark.parametrize("scheme", ["gs", "gcs"])
def test_a_dataset_in_google_has_the_same_bytes_as_one_in_a_folder(
    scheme, data, google_bucket, inputs, tmp_path
):
    places = (data, f"{google_bucket}/out")
    data, output = (place.replace("gs:", f"{scheme}:") for place in places)
    check_dataset(data, output, inputs, tmp_path / "out")


def test_the_installed_command_reads_and_writes_google(
    shell, google_bucket, google_storage, recordings, work
):
    shell.environment |= google_environment(google_storage, work / "no-settings")
    check_command(shell, recordings, google_bucket)
    job = ("run", "in", "--step", "batchmill.steps.words:split", "-o", "gs://no-such/out")
    (work / "in").mkdir()
    (work / "in" / "a.txt").write_text("a word")
    missing = shell.batchmill(*job)
    assert "no bucket 'no-such'. Create it" in missing.stderr
    assert "Traceback" not in missing.stderr


def test_an_input_is_one_request_for_the_plan_and_two_for_its_fetch(
    data, google_bucket, proxied_google
):
    with proxied_google(lambda request: None) as proxy:
        run_job(f"{data}/m.csv", COPY, f"{google_bucket}/out")
    read = [request for request in proxy.requests if request.method == "GET"]
    assert len([request for request in read if "in%2F1.txt" in request.path]) == 3
    assert [request for request in read if "in%2F1.txt" in request.query] == []


def test_patterns_and_unusual_names(data, google_bucket):
    check_names(data, f"{google_bucket}/out")


def test_many_inputs_of_one_folder_are_listed(data):
    check_listing(data)


def test_a_folder_marker_is_not_a_file(data, google_bucket):
    """Google's console has an empty object for each folder."""
    for folder in ("data/in", "out", "out/.batchmill"):
        remote.write(f"{google_bucket}/{folder}/", b"")
    assert run_job(f"{data}/in", COPY, f"{google_bucket}/out").outcomes == {"ok": 10}
    assert run_job(f"{data}/in", COPY, f"{google_bucket}/out").executed == 0


@pytest.mark.parametrize("size", [0, 5, 5 * 2**20])
def test_a_step_reads_parts_of_an_open_input(data, google_bucket, size):
    remote.write(f"{data}/open/a.bin", b"x" * size)
    output = f"{google_bucket}/out"
    assert run_job(f"{data}/open", "open_steps:first_word", output).outcomes == {"ok": 1}


def test_the_right_to_objects_is_enough_for_an_empty_bucket(data, google_storage, proxied_google):
    """With the role Storage Object User, a user may not describe the bucket."""
    empty = make_google_bucket(google_storage, f"empty-{uuid.uuid4().hex[:12]}")

    def react(request):
        return Reply(403) if re.fullmatch("/storage/v1/b/[^/]+", request.path) else None

    with proxied_google(react):
        assert run_job(f"{data}/m.csv", COPY, f"{empty}/out").outcomes == {"ok": 10}


@pytest.mark.parametrize("status", [401, 403])
def test_rejected_credentials_are_reported_at_once(status, data, proxied_google, caplog):
    message = "Anonymous caller does not have storage.objects.get access"
    body = json.dumps({"error": {"code": status, "message": message}}).encode()
    with proxied_google(lambda request: Reply(status, body)) as proxy:
        with pytest.raises(StoreError, match=f"access denied .{message}.*Get access") as caught:
            remote.read(f"{data}/m.csv")
        assert not caught.value.passing
        assert len(proxy.requests) == 1
    assert [record for record in caplog.records if record.name == "gcsfs"] == []


def test_a_missing_bucket_is_reported(data):
    with pytest.raises(StoreError, match=r"no bucket 'no-such-bucket'\. Create it"):
        run_job(f"{data}/m.csv", COPY, "gs://no-such-bucket/out")


@pytest.mark.parametrize("way", ["environment", "store"])
def test_the_file_of_a_service_account_is_used(
    way, data, google_bucket, proxied_google, tmp_path, monkeypatch
):
    def react(request):
        if request.path == "/token":
            return Reply(200, json.dumps({"access_token": "good", "expires_in": 3600}).encode())
        return None if request.signer == "good" else Reply(401)

    options = {}
    with proxied_google(react) as proxy:
        account = make_service_account(tmp_path / "account.json", f"{proxy.url}/token")
        if way == "environment":
            monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(account))
        else:
            options["token"] = str(account)
        forget_connections()
        with access_to([Access(url=google_bucket, options=options)]):
            assert run_job(f"{data}/m.csv", COPY, f"{google_bucket}/out").outcomes == {"ok": 10}
        assert "/token" in [request.path for request in proxy.requests]


@pytest.mark.long  # gcsfs waits half a minute in all.
def test_a_server_that_does_not_respond_is_reported(data, proxied_google, monkeypatch):
    monkeypatch.setattr(provider_requests, "_SILENT_SECONDS", 0.1)
    monkeypatch.setattr("batchmill.core.storage.retries.retry_remote.pauses", ())
    forget_connections()
    over = threading.Event()
    with proxied_google(lambda request: over.wait(90) and None) as proxy:
        with pytest.raises(StoreError, match="Timeout") as caught:
            remote.read(f"{data}/m.csv")
        over.set()
        assert caught.value.passing
        assert len(proxy.requests) > 1


def test_missing_credentials_are_reported(google_bucket):
    options = {"token": "google_default"}
    with (
        access_to([Access(url=google_bucket, options=options)]),
        pytest.raises(StoreError, match=r"access denied .*credentials were not found"),
    ):
        remote.read(f"{google_bucket}/a")
