"""An S3 server for tests, with all data in memory, and checks that hold in every object store."""

import sys
from pathlib import Path

import fsspec
import pytest

from batchmill import load_manifest, open_dataset
from batchmill.core.storage import open_store, remote
from harness.comparison import contents, faults
from harness.jobs import run_job
from harness.live import free_ports, start_server

COPY = "steps_under_test:copy"
SECRET = "open-sesame-0123456789"


def start_s3_server(folder):
    """Start a server on a free port, with its log in the folder; return its process and its URL."""
    folder.mkdir()
    (port,) = free_ports()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, str(Path(__file__).parent / "s3_service.py"), str(port)]
    return start_server(command, f"{url}/moto-api/data.json", folder / "log"), url


def s3_environment(url):
    """Return the environment variables that select the server at this URL."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }


def make_bucket(name):
    """Create a bucket in the store that the environment selects; return its URL."""
    files = fsspec.filesystem("s3", use_listings_cache=False)
    files.mkdir(name)
    return f"s3://{name}"


def upload(folder, url):
    """Copy a folder's files below a URL; return the URL."""
    store = open_store(url)
    for path in folder.rglob("*"):
        if path.is_file():
            store.write(str(path.relative_to(folder)), path.read_bytes())
    return url


def check_dataset(data, output, inputs, folder):
    """Run jobs over ten uploaded inputs. The dataset is as in a folder, and a change is found."""
    job = (f"{data}/m.csv", COPY, output)
    assert run_job(*job).outcomes == {"ok": 10}
    run_job(inputs / "m.csv", COPY, folder)
    assert contents(output) == contents(folder)
    assert faults(output) == []
    assert run_job(*job).executed == 0
    open_store(data).write("in/1.txt", b"CONTENT of in/1.txt")
    assert run_job(*job).executed == 1
    samples = [sample.data for sample in open_dataset(output)]
    assert sorted(samples)[0] == "CONTENT of in/1.txt"
    assert len(samples) == 10


def check_names(data, output):
    """Run a job over unusual names below ten uploaded inputs, and find inputs by patterns."""
    names = ["in/a b.txt", "in/é.txt", "in/x//y.txt", "in/#1?.txt", "in/..b.txt", "in/%20.txt"]
    for name in names:
        remote.write(f"{data}/{name}", b"x")
    rows = b"\n".join(b'{"input": "%s"}' % name.encode() for name in names)
    remote.write(f"{data}/odd.jsonl", rows)
    summary = run_job(f"{data}/odd.jsonl", COPY, output)
    assert summary.outcomes == {"ok": len(names)}
    found = load_manifest(f"{data}/in/[0-9].txt").inputs["input"].to_pylist()
    assert found == [f"{number}.txt" for number in range(10)]
    below = load_manifest(f"{data}/in/**/y.txt").inputs["input"].to_pylist()
    assert below == ["x//y.txt"]


def check_listing(data):
    """The sizes of ten uploaded inputs come from a listing, not from one request each."""
    alone = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote, "FEW", 5)
        urls = [f"{data}/in/{number}.txt" for number in range(11)]
        seen = remote.stat_many(urls, alone.append)
    assert [found and found.size for found in seen] == [19] * 10 + [None]
    assert alone == []


def check_command(shell, recordings, bucket):
    """Run the installed command over three recordings in a bucket. Return what it printed."""
    for path in sorted(recordings.iterdir())[3:]:
        path.unlink()
    upload(recordings, f"{bucket}/recordings")
    step = ("--step", "batchmill.steps.audio:split", "--param", "seconds=1")
    command = ("run", f"{bucket}/recordings", *step, "-o", f"{bucket}/clips")
    done = shell.batchmill(*command)
    assert "3 inputs: 3 ok" in done.stdout, done.stderr
    assert "3 inputs: 3 ok (0 executed)" in shell.batchmill(*command).stdout
    assert shell.batchmill("verify", f"{bucket}/clips").returncode == 0
    return done.stdout + done.stderr


def upload_in_parts(url, data):
    """Upload a file in parts, as for large files. Its ETag differs from that of a single upload."""
    files = fsspec.filesystem("s3")
    bucket, _, key = url.removeprefix("s3://").partition("/")
    where = {"Bucket": bucket, "Key": key}
    where["UploadId"] = files.call_s3("create_multipart_upload", **where)["UploadId"]
    part = files.call_s3("upload_part", PartNumber=1, Body=data, **where)
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    files.call_s3("complete_multipart_upload", MultipartUpload=parts, **where)


def begin_upload(url):
    """Begin an upload in parts, send one part, and never complete it."""
    files = fsspec.filesystem("s3")
    bucket, _, key = url.removeprefix("s3://").partition("/")
    where = {"Bucket": bucket, "Key": key}
    where["UploadId"] = files.call_s3("create_multipart_upload", **where)["UploadId"]
    files.call_s3("upload_part", PartNumber=1, Body=b"part", **where)


def incomplete_uploads(bucket):
    """Return the keys of all uploads that are not complete."""
    answer = fsspec.filesystem("s3").call_s3(
        "list_multipart_uploads", Bucket=bucket.removeprefix("s3://")
    )
    return [upload["Key"] for upload in answer.get("Uploads", ())]


def forget_connections():
    """Drop all connections: the next access reads the environment again."""
    libraries = [*fsspec.registry.values()]
    if "gcsfs.core" in sys.modules:  # fsspec has only its subclass.
        libraries.append(sys.modules["gcsfs.core"].GCSFileSystem)
    for library in libraries:
        library.clear_instance_cache()
