"""Saved stores and jobs from the command line. No output contains a secret."""

import json
import re
import shutil
import uuid

import fsspec
import pytest
from harness.live import ROOT, clean_environment, flow_run_of, shell_in
from harness.object_store import SECRET, forget_connections, make_bucket, upload

PAGE = (ROOT / "docs" / "how-to" / "saved-blocks.md").read_text()
OURS = ["clips", "gpus", "lab"]
OTHERS = """
import json, os
from prefect.filesystems import LocalFileSystem, RemoteFileSystem
options = json.loads(os.environ["STORE"])
RemoteFileSystem(basepath=os.environ["BUCKET"] + "/remote", settings=options).save("lab")
LocalFileSystem(basepath=os.getcwd()).save("here")
"""


def options_for(s3):
    return {
        "key": s3["AWS_ACCESS_KEY_ID"],
        "secret": s3["AWS_SECRET_ACCESS_KEY"],
        "endpoint_url": s3["AWS_ENDPOINT_URL"],
    }


def files_in(s3):
    return fsspec.filesystem("s3", use_listings_cache=False, **options_for(s3))


def contents_of(bucket, s3):
    files = files_in(s3)
    return {name: files.cat_file(name) for name in files.find(bucket)}


@pytest.fixture(scope="module")
def prefect_server(own_prefect_server):
    """A server only for these tests, because the names of blocks are unique on a server."""
    return own_prefect_server


@pytest.fixture(scope="module")
def bucket(s3):
    """A bucket with recordings. The shell's environment has no credentials for it."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3.items():
            patch.setenv(name, value)
        forget_connections()
        bucket = make_bucket(f"saved-{uuid.uuid4().hex[:12]}")
        upload(ROOT / "examples" / "recordings", f"{bucket}/recordings")
    forget_connections()
    return bucket


@pytest.fixture(scope="module")
def saved(prefect_server, s3, bucket, tmp_path_factory):
    """The page's blocks, for the bucket and a local Ray, and two of Prefect's file-system blocks.

    Returns the folder of the block `local-file-system/here`.
    """
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    options = options_for(s3)
    for before, after in {
        "s3://lab": bucket,
        '{"key": "...", "secret": "...", "endpoint_url": "http://minio:9000"}': str(options),
        'address="ray://head:10001", num_gpus=0.5': 'address="local"',
    }.items():
        assert before in code
        code = code.replace(before, after)
    code = re.sub(r'save\("(\w+)"\)', r'save("\1", overwrite=True)', code + OTHERS)
    environment = clean_environment(tmp_path_factory.mktemp("home"))
    environment |= {"PREFECT_API_URL": prefect_server}
    environment |= {"STORE": json.dumps(options), "BUCKET": bucket}
    folder = tmp_path_factory.mktemp("here")
    with shell_in(folder, environment) as shell:
        done = shell.python(code)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.usefixtures("saved")
def test_a_saved_job_runs_and_its_secrets_stay_secret(shell, bucket, s3, api, tmp_path):
    if files_in(s3).exists(f"{bucket}/datasets"):  # The commands of the page make it, too.
        files_in(s3).rm(f"{bucket}/datasets", recursive=True)
    done = shell.batchmill("run", "--job", "clips")  # Only the block has credentials.
    assert done.returncode == 0, done.stderr
    assert "4 inputs: 4 ok (4 executed" in done.stdout
    code, summary = shell.json("run", "--job", "block:clips")
    assert (code, summary["outcomes"], summary["executed"]) == (0, {"ok": 4}, 0)
    flow_run, tasks = flow_run_of(api, f"{bucket}/datasets/clips")
    assert flow_run["state"]["type"] == "COMPLETED"
    of_run = {"flow_run_id": {"any_": [flow_run["id"]]}}
    logs = api("/logs/filter", {"logs": of_run, "limit": 200})
    blocks = api("/block_documents/filter", {"block_documents": {"name": {"any_": OURS}}})
    # Prefect stores the settings of its own RemoteFileSystem as plain text.
    ours = [block for block in blocks if block["block_type"]["slug"].startswith("batchmill-")]
    assert sorted(block["name"] for block in ours) == OURS
    on_server = json.dumps([flow_run, tasks, logs, ours])
    assert SECRET not in on_server
    assert f"{bucket}/datasets/clips" in on_server
    kept = contents_of(bucket, s3) | {
        str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    }
    assert f"{bucket.removeprefix('s3://')}/datasets/clips/metadata.csv" in kept
    assert [name for name, data in kept.items() if SECRET.encode() in data] == []


@pytest.mark.long
@pytest.mark.usefixtures("saved")
def test_the_commands_of_the_page_work(shell, work):
    (commands,) = (
        block for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) if "--job" in block
    )
    shutil.copytree(ROOT / "examples" / "recordings", work / "recordings", ignore=all_but_sounds)
    shutil.copy(ROOT / "prefect.yaml", work)
    for command in (
        "prefect work-pool create --type process batchmill",
        "prefect --no-prompt deploy --all",
        *commands.strip().splitlines(),
    ):
        done = shell.run("bash", "-c", command)
        assert done.returncode == 0, (command, done.stdout, done.stderr)


def all_but_sounds(_, names):
    return [name for name in names if not name.endswith((".wav", ".flac"))]


@pytest.mark.long
def test_a_relative_output_is_in_the_store(shell, saved, bucket, words, is_long):
    step = ["--step", "batchmill.steps.words:split"]
    places = {
        "block:lab": f"{bucket}/datasets/made",
        "block:remote-file-system/lab": f"{bucket}/remote/made",
        "block:local-file-system/here": f"{saved}/made",
    }
    if not is_long:
        del places["block:lab"]  # The saved job uses this store.
    for store, place in places.items():
        done = shell.batchmill("run", words, *step, "-o", "made", "--store", store)
        assert done.returncode == 0, done.stderr
        assert "5 inputs: 5 ok (5 executed" in done.stdout
        assert f"Dataset: {place}" in done.stdout
    # Without the store, there are no credentials. The message names the bucket.
    done = shell.batchmill("run", words, *step, "-o", f"{bucket}/other")
    assert done.returncode == 2
    assert f"batchmill: {bucket}" in done.stderr
