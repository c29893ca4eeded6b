"""Saved stores and jobs from the command line; secrets show nowhere."""

import json
import uuid

import fsspec
import pytest
from live import flow_run_of
from object_store import SECRET, forget_connections, make_bucket, upload

SAVE = """
import json, os
from batchmill.blocks import DatasetStore, RayCluster, SavedJob
from prefect.filesystems import LocalFileSystem, RemoteFileSystem
options, bucket, words = json.loads(os.environ["STORE"]), os.environ["BUCKET"], os.environ["WORDS"]
store = DatasetStore(url=bucket, options=options)
store.save("lab", overwrite=True)
RemoteFileSystem(basepath=f"{bucket}/remote", settings=options).save("lab", overwrite=True)
LocalFileSystem(basepath=os.getcwd()).save("here", overwrite=True)
job = SavedJob(
    manifest=f"{bucket}/in", step="batchmill.steps.words:split", output="saved", store=store,
    params={"num_chars": 3}, cluster=RayCluster(address="local"), max_failures="1",
)
job.save("nightly", overwrite=True)
"""


def options_for(s3):
    return {
        "key": s3["AWS_ACCESS_KEY_ID"],
        "secret": s3["AWS_SECRET_ACCESS_KEY"],
        "endpoint_url": s3["AWS_ENDPOINT_URL"],
    }


def contents_of(bucket, s3):
    files = fsspec.filesystem("s3", use_listings_cache=False, **options_for(s3))
    return {name: files.cat_file(name) for name in files.find(bucket)}


@pytest.fixture
def saved(shell, s3, words, monkeypatch):
    """Blocks in the API, over a bucket that nothing in the shell's environment leads to."""
    with monkeypatch.context() as patch:
        for name, value in s3.items():
            patch.setenv(name, value)
        forget_connections()
        bucket = make_bucket(f"saved-{uuid.uuid4().hex[:12]}")
        upload(words, f"{bucket}/in")
    forget_connections()
    (words / "manifest.csv").unlink()
    shell.environment |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    shell.environment |= {
        "STORE": json.dumps(options_for(s3)),
        "BUCKET": bucket,
        "WORDS": str(words),
    }
    done = shell.python(SAVE)
    assert done.returncode == 0, done.stderr
    for name in ("STORE", "BUCKET", "WORDS"):
        del shell.environment[name]
    return bucket


def test_a_saved_job_runs_and_its_secrets_stay_secret(shell, saved, s3, api, tmp_path):
    code, summary = shell.json("run", "--job", "nightly")
    assert (code, summary["outcomes"]) == (0, {"ok": 5})
    again, summary = shell.json("run", "--job", "block:nightly")
    assert (again, summary["executed"]) == (0, 0)
    flow_run, tasks = flow_run_of(api, f"{saved}/saved")
    assert flow_run["state"]["type"] == "COMPLETED"
    logs = api("/logs/filter", {"limit": 200})
    blocks = api("/block_documents/filter", {"limit": 200})
    # Prefect's own file system is in clear: there, the settings are no secrets.
    ours = [block for block in blocks if block["block_type"]["slug"].startswith("batchmill-")]
    assert {block["name"] for block in ours} == {"lab", "nightly"}
    told = json.dumps([flow_run, tasks, logs, ours])
    assert SECRET not in told
    assert f"{saved}/saved" in told
    kept = contents_of(saved, s3) | {
        str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    }
    assert f"{saved.removeprefix('s3://')}/saved/metadata.csv" in kept
    assert [name for name, data in kept.items() if SECRET.encode() in data] == []


def test_a_store_is_where_relative_outputs_are(shell, saved, words, work):
    step = ["--step", "batchmill.steps.words:split"]
    for store in ("block:lab", "block:remote-file-system/lab"):
        done = shell.batchmill("run", words, *step, "-o", "made", "--store", store)
        assert done.returncode == 0, done.stderr
        assert "4 inputs: 4 ok (4 executed" in done.stdout
    assert f"Dataset: {saved}/remote/made" in done.stdout
    done = shell.batchmill(
        "run", words, *step, "-o", "made", "--store", "block:local-file-system/here"
    )
    assert f"Dataset: {work}/made" in done.stdout
    # Without the store, nothing leads there, and what is said of that names no secret.
    done = shell.batchmill("run", words, *step, "-o", f"{saved}/other")
    assert done.returncode == 2
    assert f"batchmill: {saved}" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--job", "none-such"], "--job block:none-such: there is no saved block of this name"),
        (["--job", "nightly", "--batch-size", "3"], "--job nightly: what to do, where and how is"),
        (["words", "--job", "nightly"], "--job nightly: what to do, where and how is saved with"),
        (["words", "--step", "a:b", "-o", "x", "--store", "lab"], "--store: 'lab' is no dataset s"),
        (["words", "--step", "a:b", "-o", "x", "--store", "block:no/no"], "--store block:no/no: "),
        (["words", "--step", "a:b", "-o", "../x", "--store", "block:lab"], "has '..' in it."),
        ([], "missing: MANIFEST, --step, --output. Give all three; or, to `run`, a saved job"),
    ],
)
def test_what_cannot_be_is_said(shell, saved, work, arguments, told):
    done = shell.batchmill("run", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert list(work.iterdir()) == []
