"""The installed command with inputs and a dataset in a bucket."""

import json

import fsspec
import pytest
from harness.comparison import contents, faults
from harness.jobs import run_job
from harness.live import flow_run_of
from harness.object_store import SECRET, upload

SPLIT = "batchmill.steps.audio:split"


@pytest.mark.journey
def test_recordings_in_a_bucket_become_clips_in_a_bucket(shell, api, s3, bucket, recordings, work):
    (recordings / "broken.wav").write_bytes(b"RIFF and nothing more")
    for path in sorted(recordings.iterdir())[3:]:
        path.name == "broken.wav" or path.unlink()
    upload(recordings, f"{bucket}/recordings")
    shell.environment |= s3
    options = ["--step", SPLIT, "--param", "seconds=1", "--retries", "0"]
    count = len(list(recordings.iterdir()))

    done = shell.batchmill("run", f"{bucket}/recordings", *options, "-o", f"{bucket}/clips")
    assert done.returncode == 1, done.stderr
    assert f"{count} inputs: {count - 1} ok, 1 failed" in done.stdout
    assert f"Dataset: {bucket}/clips" in done.stdout
    run_job(recordings, SPLIT, work / "clips", seconds=1)
    assert contents(f"{bucket}/clips") == contents(work / "clips")
    assert faults(f"{bucket}/clips") == []
    code, status = shell.json("status", f"{bucket}/clips")
    assert (code, status["outcomes"]) == (0, {"ok": count - 1, "failed": 1})
    code, failures = shell.json("failures", f"{bucket}/clips")
    assert [row["input"] for row in failures] == ["broken.wav"]

    # If the store cannot be reached, there is a message. No message and no file has a secret.
    shell.environment |= {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}
    closed = shell.batchmill("status", f"{bucket}/clips")
    assert closed.returncode == 2
    assert "no server responds (Could not connect" in closed.stderr
    assert "Check the network, and the server's address" in closed.stderr
    assert "Traceback" not in closed.stderr
    run, tasks = flow_run_of(api, f"{bucket}/clips")
    of_run = {"flow_run_id": {"any_": [run["id"]]}}
    logs = api("/logs/filter", {"logs": of_run, "limit": 200})
    artifacts = api("/artifacts/filter", {"artifacts": of_run})
    shown = [done.stdout, done.stderr, closed.stdout, closed.stderr]
    kept = json.dumps([run, tasks, logs, artifacts])
    files = fsspec.filesystem("s3", use_listings_cache=False)
    stored = b"".join(files.cat(files.find(f"{bucket}/clips")).values())
    assert "broken.wav" in kept
    for secret in (SECRET, s3["AWS_ACCESS_KEY_ID"]):
        assert secret not in "".join([*shown, kept])
        assert secret.encode() not in stored
