"""Manifests, inputs and datasets work in an S3 bucket as in a folder."""

import os
import random
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import product

import fsspec
import pandas as pd
import pytest
from harness.comparison import contents, faults
from harness.crashing import in_child
from harness.jobs import run_job
from harness.live import STEP_MODULES, serving, wait_for
from harness.object_store import (
    COPY,
    SECRET,
    forget_connections,
    make_bucket,
    upload,
    upload_in_parts,
)
from harness.s3_proxy import Reply

from batchmill import (
    LedgerError,
    ManifestError,
    OptionError,
    StoreError,
    export,
    load_manifest,
    open_dataset,
)
from batchmill.core.ledger.lease import holder, lease
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.open import open_ledger
from batchmill.core.planning.job import make_job
from batchmill.core.planning.prepare import prepare
from batchmill.core.storage import obstore_s3, open_store, remote
from batchmill.core.storage.scratch import lock_scratch_folder, scratch_folder
from batchmill.runs.workers.landlock import is_supported

# Each worker opens its own connections, and each core has a shard with its own workers.
ONE_WORKER = {"num_workers": 1, "cores": 1}


@pytest.fixture
def data(inputs, bucket):
    """Upload the inputs and the manifest to a bucket, and return the URL."""
    return upload(inputs, f"{bucket}/data")


@pytest.fixture
def store(data):
    return open_store(data)


@pytest.fixture
def job(data, bucket):
    """Return a function that runs the job and returns the summary."""

    def run(manifest=f"{data}/m.csv", output=f"{bucket}/out", step=COPY, **options):
        return run_job(manifest, step, output, **ONE_WORKER | options)

    return run


def executed(job, **options):
    return job(**options).executed


@pytest.fixture(scope="module")
def shared_job(s3, tmp_path_factory):
    """Return a manifest of one input in a bucket and its dataset, for tests that change neither."""
    folder = tmp_path_factory.mktemp("shared")
    (folder / "a.txt").write_text("content")
    (folder / "m.csv").write_text("input\na.txt\n")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3.items():
            patch.setenv(name, value)
        patch.chdir(STEP_MODULES)
        forget_connections()
        bucket = make_bucket(f"bucket-{uuid.uuid4().hex[:12]}")
        manifest = f"{upload(folder, f'{bucket}/data')}/m.csv"
        run_job(manifest, COPY, f"{bucket}/out", **ONE_WORKER)
    forget_connections()
    return manifest, f"{bucket}/out"


def test_a_dataset_in_a_bucket_has_the_same_bytes_as_one_in_a_folder(job, inputs, bucket, tmp_path):
    assert job(cores=2).outcomes == {"ok": 10}
    run_job(inputs / "m.csv", COPY, tmp_path / "out")
    assert contents(f"{bucket}/out") == contents(tmp_path / "out")
    assert faults(f"{bucket}/out") == []
    assert executed(job) == 0


def test_only_changed_inputs_are_executed(job, store, bucket):
    job()
    store.write("in/1.txt", store.read("in/1.txt"))
    assert executed(job) == 0, "rewritten with the same content"
    store.write("in/1.txt", b"another ....")
    store.write("in/2.txt", b"CONTENT of in/2.txt")
    assert executed(job) == 2
    out = open_store(f"{bucket}/out")
    out.remove(next(name for name in out.files("files") if "in-3-" in name))
    assert executed(job) == 1
    store.write("m.csv", b"input,label\nin/0.txt,zero\n")
    summary = job(prune=True, keep_versions=0)
    assert (summary.executed, summary.counts["withdrawn"]) == (0, 9)
    assert len([*out.files("files")]) == 1
    assert b"zero" in out.read("metadata.csv")
    assert faults(f"{bucket}/out") == []


def test_a_new_etag_of_the_same_content_is_read_once_and_executes_nothing(job, data, bucket):
    """A copy in parts has another ETag, which contains the number of parts."""
    job()
    before = remote.stat(f"{data}/in/0.txt").etag
    upload_in_parts(f"{data}/in/0.txt", b"content of in/0.txt")
    assert remote.stat(f"{data}/in/0.txt").etag != before
    plan = prepare(make_job(manifest=f"{data}/m.csv", step=COPY, output=f"{bucket}/out")).plan
    assert (plan.counts["unchanged"], len(plan.touched)) == (10, 1)
    assert executed(job) == 0
    plan = prepare(make_job(manifest=f"{data}/m.csv", step=COPY, output=f"{bucket}/out")).plan
    assert len(plan.touched) == 0


def test_a_manifest_may_mix_urls_and_paths(inputs, data, bucket, tmp_path):
    urls = [f"{data}/in/0.txt", f"{data}/in/nosuch.txt", str(inputs / "in" / "1.txt")]
    summary = run_job_of(urls, tmp_path)
    assert summary.outcomes == {"ok": 2, "missing": 1}
    table = pd.read_csv(tmp_path / "out" / "metadata.csv")
    assert table["input"].tolist() == [urls[0], "data/in/1.txt"]
    # The missing input is executed after it was written.
    open_store(data).write("in/nosuch.txt", b"here")
    assert run_job_of(urls, tmp_path).executed == 1
    assert run_job_of(urls, tmp_path).executed == 0


def run_job_of(urls, folder):
    (folder / "urls.csv").write_text("input\n" + "".join(f"{url}\n" for url in urls))
    return run_job(folder / "urls.csv", COPY, folder / "out", **ONE_WORKER)


def test_changes_are_detected_in_a_store_without_etags(inputs, tmp_path):
    folder = f"memory://{tmp_path.name}"
    upload(inputs, folder)
    run = partial(run_job, f"{folder}/m.csv", COPY, tmp_path / "out", **ONE_WORKER)
    assert run().outcomes == {"ok": 10}
    assert run().executed == 0
    open_store(folder).write("in/1.txt", b"CONTENT of in/1.txt")
    assert run().executed == 1


def test_a_dataset_as_a_step_gets_local_copies(job):
    assert job(step="steps_under_test:Splitter").outcomes == {"ok": 10}


def test_a_local_copy_is_in_a_folder_with_the_name_of_its_folder(job, data, store, bucket):
    """Tables of annotations name the folder of a recording."""
    store.write("in/north/x.txt", b"x")
    store.write("n.csv", b"input,label\nin/north/x.txt,wren\n")
    assert job(manifest=f"{data}/n.csv", step="kit_steps:labelled").outcomes == {"ok": 1}
    assert b'"wren","north"' in open_store(f"{bucket}/out").read("metadata.csv")


def test_a_prefix_and_a_pattern_list_files_outside_datasets(job, data, store):
    store.write("in/deeper/x.txt", b"x")
    store.write("in/deeper/x.bin", b"x")
    store.write("in/.hidden.txt", b"x")
    store.write("in/old/.batchmill/format.json", b"{}")
    store.write("in/old/files/y.txt", b"x")
    texts = [f"{number}.txt" for number in range(10)]
    listed = load_manifest(f"{data}/in/", pattern="*.txt")
    assert listed.inputs["input"].to_pylist() == [*texts, "deeper/x.txt"]
    assert set(listed.inputs["size"].to_pylist()) == {1, 19}
    assert load_manifest(f"{data}/in/*.txt").inputs["input"].to_pylist() == texts
    globbed = load_manifest(f"{data}/in/**/*.txt").inputs["input"].to_pylist()
    assert globbed == [*texts, "deeper/x.txt"]
    assert job(manifest=f"{data}/in/*/*.bin").outcomes == {"ok": 1}


def test_many_inputs_of_one_folder_are_listed(data, monkeypatch):
    monkeypatch.setattr(remote, "FEW", 20)
    urls = [f"{data}/many/{number:03d}" for number in range(30)]
    fsspec.filesystem("s3").pipe(dict.fromkeys(urls, b"x" * 3))
    alone = []
    others = [f"{data}/in/0.txt", f"{data}/many/none"]
    seen = remote.stat_many([*urls, *others], lambda url: alone.append(url) or remote.stat(url))
    assert [found and found.size for found in seen] == [3] * 30 + [19, None]
    assert alone == [f"{data}/in/0.txt"]


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        ("m.csv/", "no such file, and no files below it"),
        ("nosuch.csv", "no such file, and no files below it"),
        ("in/0.txt", "unknown manifest format"),
        ("../m.csv", "no such file, and no files below it"),
    ],
)
def test_a_url_without_a_manifest_is_rejected(data, manifest, expected):
    with pytest.raises(ManifestError, match=expected):
        load_manifest(f"{data}/{manifest}")


def test_keys_are_used_unchanged_as_names(data, store):
    names = ["in/a b.txt", "in/é.txt", "in/x//y.txt", "in/#1.txt", "in/..b.txt"]
    for name in names:
        store.write(name, b"x")
    store.write("odd.jsonl", b"\n".join(b'{"input": "%s"}' % name.encode() for name in names))
    manifest = load_manifest(f"{data}/odd.jsonl")
    assert manifest.inputs["input"].to_pylist() == names
    assert manifest.inputs["size"].to_pylist() == [1] * 5
    store.write("bad.csv", b"input\nin/../in/0.txt\n./in/0.txt\nin/0.txt\n")
    with pytest.raises(ManifestError) as caught:
        load_manifest(f"{data}/bad.csv")
    assert caught.value.faults[0].startswith("line 2: 'in/../in/0.txt' has '..' in it")
    assert "already listed on line 3" in caught.value.faults[1]


def test_inputs_outside_the_root_are_rejected(data, store):
    store.write("rooted.csv", f"input\n0.txt\n{data}/in/1.txt\n{data}/m.csv\n".encode())
    with pytest.raises(ManifestError, match="leaves the root"):
        load_manifest(f"{data}/rooted.csv", root=f"{data}/in")
    store.write("rooted.csv", f"input\n0.txt\n{data}/in/1.txt\n".encode())
    manifest = load_manifest(f"{data}/rooted.csv", root=f"{data}/in/")
    assert manifest.inputs["input"].to_pylist() == ["0.txt", "1.txt"]


@pytest.mark.usefixtures("bucket")
def test_a_dataset_in_a_bucket_has_one_writer(shared_job):
    manifest, dataset = shared_job
    ledger = Ledger(open_store(dataset))
    assert holder(ledger) is None
    with lease(ledger):
        assert str(os.getpid()) in holder(ledger)
        with pytest.raises(LedgerError, match="another run is using it"):
            run_job(manifest, COPY, dataset, **ONE_WORKER)


def test_a_missing_bucket_and_a_url_without_a_dataset_are_rejected(job, data):
    with pytest.raises(StoreError, match="no bucket 'no-such-bucket'"):
        job(output="s3://no-such-bucket/out")
    with pytest.raises(OptionError, match="contains files, but is not a dataset"):
        job(output=data)
    with pytest.raises(OptionError, match="is not a dataset"):
        open_ledger(f"{data}/nosuch")


def test_a_store_that_overwrites_files_is_rejected_by_every_run(job, bucket, proxied):
    """The first write is stored. The server answers each later one as if it had overwritten it."""
    writes = []

    def overwrite(request):
        if request.method == "PUT" and request.path.endswith("/format.json"):
            writes.append(request)
            return Reply(headers={"ETag": '"new"'}) if len(writes) > 1 else None
        return None

    with proxied(overwrite):
        for _ in range(2):
            with pytest.raises(StoreError, match="ignores conditional writes"):
                job()
    assert len(writes) == 4
    assert list(open_store(bucket).files("out")) == []


@pytest.fixture
def unsteady(monkeypatch):
    """Let the store fail: calls at random, or all calls after a number until a file exists.

    Returns the state that controls it: `chance`, `dies_after`, and the path of the file.
    """
    import s3fs

    call = s3fs.S3FileSystem._call_s3
    state = {"chance": 0.0, "calls": 0, "dies_after": None, "mended": None}

    async def flaky(self, method, *arguments, **options):
        state["calls"] += 1
        dead = state["dies_after"] is not None and state["calls"] > state["dies_after"]
        if (dead and not state["mended"].exists()) or random.random() < state["chance"]:
            raise ConnectionError("the line is down")
        return await call(self, method, *arguments, **options)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", flaky)
    pauses = "batchmill.core.storage.retries.retry_remote.pauses"
    monkeypatch.setattr(pauses, (0.0,) * 6)
    return state


def test_random_failures_of_a_store_lose_nothing(job, bucket, unsteady):
    unsteady["chance"] = 0.1
    assert job(num_workers=1).outcomes == {"ok": 10}
    unsteady["chance"] = 0.0
    assert unsteady["calls"] > 30
    assert executed(job) == 0
    assert faults(f"{bucket}/out") == []


def test_inputs_do_not_fail_when_the_store_becomes_unavailable(job, bucket, unsteady, tmp_path):
    unsteady["mended"] = tmp_path / "mended"
    unsteady["chance"] = 0.0
    with pytest.raises(StoreError, match="the line is down"):
        # With one shard, 20 requests would be nearly the whole run.
        job(before=lambda: unsteady.update(dies_after=unsteady["calls"] + 20), cores=2)
    unsteady["mended"].touch()
    summary = job()
    assert summary.outcomes == {"ok": 10}
    assert faults(f"{bucket}/out") == []


def test_errors_contain_no_secrets(data, monkeypatch):
    """The library puts secrets into its error."""
    import s3fs

    async def tell(self, method, *arguments, **options):
        raise PermissionError(f"{SECRET} at s3://{SECRET}:x@bucket?X-Amz-Signature={SECRET}")

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", tell)
    with pytest.raises(StoreError, match="access denied") as caught:
        remote.read(f"{data}/m.csv")
    assert SECRET not in str(caught.value)


def test_the_error_reports_missing_credentials(data, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    forget_connections()
    with pytest.raises(ManifestError, match=r"Unable to locate credentials.*in the environment"):
        load_manifest(f"{data}/m.csv")


def test_the_error_for_a_missing_library_names_the_extra():
    extras = {("s3fs", "s3"): "s3", ("adlfs", "az"): "azure", ("gcsfs", "gs"): "google"}
    script = (
        "import sys\n"
        "from batchmill.core.storage import remote\n"
        f"for library, scheme in {[*extras]}:\n"
        "    sys.modules[library] = None\n"
        "    try: remote.check_url(f'{scheme}://bucket/x')\n"
        "    except Exception as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert len(lines) == len(extras), done.stderr
    for line, extra in zip(lines, extras.values(), strict=True):
        assert f"pip install 'batchmill[{extra}] @ git" in line


def test_the_scratch_folder_of_a_killed_process_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def die():
        with scratch_folder() as folder:
            (folder / "large").write_text("x")
            os.kill(os.getpid(), 9)

    assert in_child(die) == -9
    (base,) = tmp_path.iterdir()
    (left,) = base.iterdir()
    with scratch_folder() as mine:
        assert not left.exists()
        with scratch_folder() as other:
            assert mine.exists()
            assert other != mine
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_process_that_was_killed_before_it_locked_it_is_removed(
    tmp_path, monkeypatch
):
    def die():
        monkeypatch.setattr("fcntl.flock", lambda *_: os.kill(os.getpid(), 9))
        lock_scratch_folder(base=tmp_path)

    assert in_child(die) == -9
    assert in_child(die) == -9
    old, new = tmp_path.iterdir()
    an_hour_ago = time.time() - 3601
    os.utime(old, (an_hour_ago, an_hour_ago))
    with scratch_folder(base=tmp_path):
        assert not old.exists()
        assert new.exists()  # Perhaps its process is about to lock it.


def test_a_key_is_not_used_as_a_local_path_or_another_url(data, store, bucket, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("of this machine")
    keys = ["0.txt", f"/{secret}".replace("//", "/"), "https://host/p.txt", "/x.txt"]
    for key in keys:
        fsspec.filesystem("s3").pipe_file(f"{data}/odd/{key}", b"in the bucket")
    run_job(f"{data}/odd", COPY, f"{bucket}/out", **ONE_WORKER)
    out = open_store(f"{bucket}/out")
    found = {out.read(name) for name in out.files("files")}
    assert found == {b"in the bucket"}
    assert len([*out.files("files")]) == 4


def test_inputs_of_a_manifest_below_two_slashes_are_found(data, bucket):
    files = fsspec.filesystem("s3")
    files.pipe_file(f"{data}/x//m.csv", b"input\na.txt\n")
    files.pipe_file(f"{data}/x//a.txt", b"right")
    files.pipe_file(f"{data}/x/a.txt", b"wrong")
    run_job(f"{data}/x//m.csv", COPY, f"{bucket}/out", **ONE_WORKER)
    out = open_store(f"{bucket}/out")
    assert [out.read(name) for name in out.files("files")] == [b"right"]


def test_an_input_that_is_replaced_and_put_back_is_executed_again(job, store):
    before = store.read("in/1.txt")
    job(before=lambda: store.write("in/1.txt", b"CONTENT of in/1.txt"))
    store.write("in/1.txt", before)
    assert executed(job) == 1


def test_an_input_that_vanishes_after_the_plan_is_missing(job, store):
    summary = job(before=lambda: store.delete("in/3.txt"))
    assert summary.outcomes == {"ok": 9, "missing": 1}
    assert executed(job) == 0


def test_a_worker_that_dies_while_files_are_stored_loses_no_input(job, bucket, proxied, inputs):
    """The uploads of the first inputs end only when the step has killed its worker."""
    died = threading.Event()

    def hold(request):
        if request.method == "PUT" and "/files/" in request.path and request.path[-1] == "t":
            died.wait(30)

    def is_dead():
        wait_for((inputs / "died").exists, "the death of the worker", 30)
        died.set()

    with proxied(hold):
        waiting = threading.Thread(target=is_dead)
        waiting.start()
        summary = job(step="steps_under_test:die_once", batch_size=10, died=str(inputs / "died"))
        waiting.join()
    assert summary.outcomes == {"ok": 10}
    assert faults(f"{bucket}/out") == []


@pytest.mark.skipif(not is_supported(), reason="needs Landlock")
def test_a_confined_step_gets_inputs_of_a_bucket(job):
    assert job(options={"confine": True}).outcomes == {"ok": 10}


def test_an_input_that_changes_after_its_fetch_is_executed_again(job, bucket, data, proxied):
    changed = []

    def change(request):
        if request.method == "GET" and request.path.endswith("/1.txt") and not changed:
            changed.append(True)
            reply = Reply(body=b"content of in/1.txt", headers={"ETag": '"before"'})
            fsspec.filesystem("s3", endpoint_url=address).pipe_file(f"{data}/in/1.txt", b"after")
            return reply
        return None

    address = os.environ["AWS_ENDPOINT_URL"]
    with proxied(change):
        job()
    assert executed(job) == 1
    assert executed(job) == 0


def test_folder_markers_are_not_files(job, data, bucket):
    files = fsspec.filesystem("s3")
    for marker in ("out/", "out/.batchmill/lease/", "out/.batchmill/released/", "data/in/"):
        files.call_s3("put_object", Bucket=bucket.removeprefix("s3://"), Key=marker, Body=b"")
    assert job(manifest=f"{data}/in").outcomes == {"ok": 10}
    assert executed(job, manifest=f"{data}/in") == 0
    assert faults(f"{bucket}/out") == []


def test_a_pattern_does_not_match_the_tables_of_a_dataset(job, data):
    manifest, output = f"{data}/**/*.*", f"{data}/sub/out"
    assert job(manifest=manifest, output=output).outcomes == {"ok": 11}
    assert executed(job, manifest=manifest, output=output) == 0


@pytest.mark.usefixtures("bucket")
def test_a_dataset_in_a_bucket_can_be_a_manifest(shared_job):
    _, dataset = shared_job
    manifest = load_manifest(dataset)
    rows = pd.read_parquet(f"{dataset}/metadata.parquet")
    assert manifest.inputs["input"].to_pylist() == rows["output"].tolist()
    assert manifest.inputs["size"].to_pylist() == [len("content")]
    assert manifest.manifest_columns["made_from"].to_pylist() == rows["input"].tolist() == ["a.txt"]


def test_a_name_may_contain_brackets(data, store):
    store.write("in [2024]/a.txt", b"x")
    assert load_manifest(f"{data}/in [2024]").inputs["input"].to_pylist() == ["a.txt"]


@pytest.fixture
def web(inputs):
    """Start a web server for the inputs and yield its URL. It sends no ETags."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(inputs))
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


def test_changes_on_a_web_server_are_detected_by_content(web, inputs, tmp_path):
    urls = [f"{web}/in/{name}.txt" for name in (0, 1, "nosuch")]
    assert run_job_of(urls, tmp_path).outcomes == {"ok": 2, "missing": 1}
    assert run_job_of(urls, tmp_path).executed == 0
    (inputs / "in" / "1.txt").write_text("CONTENT of in/1.txt")
    assert run_job_of(urls, tmp_path).executed == 1


class CountingHandler(SimpleHTTPRequestHandler):
    """Counts the requests by method, and the bytes that it sent. It may omit the sizes."""

    def __init__(self, *args, seen, sends_sizes=True, **options):
        self.seen, self.sends_sizes = seen, sends_sizes
        super().__init__(*args, **options)

    def parse_request(self):
        parsed = super().parse_request()
        self.seen[self.command] += 1
        if parsed and self.seen["fails"]:
            self.send_error(self.seen["fails"])
            return False
        return parsed

    def send_header(self, keyword, value):
        if keyword != "Content-Length" or self.sends_sizes:
            super().send_header(keyword, value)

    def copyfile(self, source, outputfile):
        with suppress(ConnectionError):  # The client may close the connection early.
            while data := source.read(2**16):
                outputfile.write(data)
                self.seen["bytes"] += len(data)


@contextmanager
def counting_web(folder, **options):
    """Yield the URL of a web server for a folder, and its counts."""
    seen = Counter()
    handler = partial(CountingHandler, directory=str(folder), seen=seen, **options)
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}", seen


def test_each_of_many_inputs_on_a_web_server_is_one_request(inputs, monkeypatch):
    """The page of a folder on a web server has no sizes, and may not list all files."""
    monkeypatch.setattr(remote, "FEW", 20)
    for number in range(remote.FEW + 1):
        (inputs / f"{number}.txt").write_text("three")
    with counting_web(inputs) as (url, seen):
        urls = [f"{url}/{number}.txt" for number in range(remote.FEW + 1)]
        assert {found.size for found in remote.stat_many(urls)} == {5}
        assert seen == {"HEAD": remote.FEW + 1}


def test_an_input_without_a_size_is_not_fetched_by_a_plan(inputs):
    (inputs / "large.bin").write_bytes(b"x" * 2**25)
    with counting_web(inputs, sends_sizes=False) as (url, seen):
        assert remote.stat(f"{url}/large.bin").size == remote.UNKNOWN_SIZE
        assert seen["bytes"] < 2**25


def test_changes_of_inputs_without_a_size_are_detected_by_content(inputs, tmp_path):
    with counting_web(inputs, sends_sizes=False) as (url, _):
        urls = [f"{url}/in/{name}.txt" for name in (0, 1)]
        assert run_job_of(urls, tmp_path).outcomes == {"ok": 2}
        assert run_job_of(urls, tmp_path).executed == 0
        (inputs / "in" / "1.txt").write_text("another content")
        assert run_job_of(urls, tmp_path).executed == 1


@pytest.mark.parametrize("status", [404, 503])
def test_a_result_stays_while_the_web_server_does_not_send_its_input(inputs, tmp_path, status):
    with counting_web(inputs) as (url, seen):
        urls = [f"{url}/in/0.txt", *(str(inputs / "in" / f"{n}.txt") for n in range(1, 4))]
        assert run_job_of(urls, tmp_path).outcomes == {"ok": 4}
        seen["fails"] = status
        summary = run_job_of(urls, tmp_path)
        assert (summary.executed, summary.counts["unreadable"]) == (0, 1)
        seen["fails"] = 0
        assert run_job_of(urls, tmp_path).counts["unchanged"] == 4


def test_an_unreachable_web_server_fails_only_its_own_inputs(web, tmp_path, unsteady):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/x.txt"
        summary = run_job_of([f"{web}/in/0.txt", url], tmp_path)
        (tmp_path / "alone").mkdir()
        assert run_job_of([url], tmp_path / "alone").outcomes == {"failed": 1}
    assert summary.outcomes["ok"] == 1
    assert summary.pending == 0


def test_inputs_that_may_not_be_fetched_or_described_fail_alone(job, proxied):
    text = b"<Error><Code>InvalidObjectState</Code><Message>in the archive</Message></Error>"

    def refuse(request):
        if request.path.endswith("in/3.txt"):
            return Reply(403, b"")
        is_refused = request.method == "GET" and request.path.endswith("in/2.txt")
        return Reply(403, text) if is_refused else None

    with proxied(refuse) as proxy:
        summary = job()
    assert "HEAD" in {one.method for one in proxy.requests if one.path.endswith("in/3.txt")}
    assert summary.outcomes == {"ok": 8, "failed": 2}
    reasons = dict(summary.failures)
    assert set(reasons) == {"in/2.txt", "in/3.txt"}
    assert "in the archive" in reasons["in/2.txt"]


class First:
    """A reaction: the first requests for each object get a reply of `reply`, if it has one.

    `seen` counts the replies by method.
    """

    def __init__(self, reply, count=1):
        self.seen, self._reply, self._count = Counter(), reply, count
        self._requests, self._lock = Counter(), threading.Lock()

    def __call__(self, request):
        with self._lock:
            self._requests[request[:3]] += 1
            reply = self._reply(request) if self._requests[request[:3]] <= self._count else None
            self.seen[request.method] += reply is not None
        return reply


@pytest.mark.slow
@pytest.mark.usefixtures("short_pauses")
def test_each_connection_is_cut_once_and_nothing_is_lost(job, bucket, proxied):
    """Bodies of inputs, of the ledger and of the tables are shorter than announced, once each."""
    cut = First(lambda request: Reply(cut=0.5) if request.method == "GET" else None)
    with proxied(cut):
        assert job().outcomes == {"ok": 10}
    assert cut.seen["GET"] > 20
    assert faults(f"{bucket}/out") == []


@pytest.mark.slow
@pytest.mark.usefixtures("short_pauses")
def test_a_store_that_is_overloaded_again_and_again_loses_nothing(job, bucket, proxied):
    def refuse(request):
        is_ours = any(part in request.path for part in ("/data/in/", "/files/", "/parts/"))
        return Reply(503, b"<Error><Code>SlowDown</Code></Error>") if is_ours else None

    busy = First(refuse, count=2)
    with proxied(busy):
        assert job().outcomes == {"ok": 10}
    assert busy.seen["GET"] >= 20
    assert busy.seen["PUT"] >= 20
    assert faults(f"{bucket}/out") == []


def test_a_slow_response_does_not_delay_the_fetches_of_other_inputs(job, proxied):
    """The first input arrives only when others of its batch and of the next are requested."""
    others, requested, late = set(), threading.Event(), []

    def hold(request):
        name = request.path.rpartition("/")[2]
        if request.method != "GET" or "/data/in/" not in request.path:
            return
        if name == "0.txt":
            late.append(not requested.wait(10))
        else:
            others.add(name)
        if len(others) >= 3:
            requested.set()

    with proxied(hold):
        assert job(batch_size=10).outcomes == {"ok": 10}
    assert late == [False]


@pytest.mark.slow
def test_an_input_that_stays_incomplete_is_pending_and_named(job, proxied, monkeypatch):
    monkeypatch.setattr("batchmill.core.storage.retries.retry_remote.pauses", ())
    # obstore resumes the fetch until this time is over.
    monkeypatch.setattr(obstore_s3, "_RETRY_TIME", timedelta(seconds=1))
    cut = Reply(cut=0.0)

    def shorten(request):
        is_input = request.method == "GET" and request.path.endswith("in/3.txt")
        return cut if is_input else None

    with proxied(shorten), pytest.raises(StoreError, match=r"in/3\.txt"):
        job()
    assert job().outcomes == {"ok": 10}


def test_a_prefix_that_may_not_be_listed_is_reported(job, data, proxied):
    denied = b"<Error><Code>AccessDenied</Code><Message>no right to list</Message></Error>"

    def refuse(request):
        is_listing = "list-type=2" in request.query and "prefix=data" in request.query
        return Reply(403, denied) if is_listing else None

    with (
        proxied(refuse),
        pytest.raises(ManifestError, match=r"data/in.*access denied.*no right to list"),
    ):
        job(manifest=f"{data}/in/")


EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The token has expired.</Message></Error>"


@pytest.fixture(params=["file", "process"])
def credentials(request, tmp_path, monkeypatch):
    """Return a function that sets the key of the default profile: in a file, or of a program."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    file, answer = tmp_path / "credentials", tmp_path / "answer.json"
    (tmp_path / "config").write_text(f"[default]\ncredential_process = cat {answer}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))

    def write(key):
        # The processes of a run read these files at any time, so they are replaced as a whole.
        new = tmp_path / f"new-{uuid.uuid4().hex}"
        if request.param == "file":
            new.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = x\n")
            new.replace(file)
        else:
            new.write_text(f'{{"Version": 1, "AccessKeyId": "{key}", "SecretAccessKey": "x"}}')
            new.replace(answer)

    return write


def cases_of_expiry():
    """Return all combinations. Those without the mark `long` have each pair of two values."""
    # S3 of Amazon answers with 400. Other servers may answer with 403.
    values = (["file", "process"], ["input", "output", "ledger"], [400, 403])
    cases = []
    for source, kind, status in product(*values):
        is_kept = ((source == "file") == (status == 400)) != (kind == "output")
        cases.append(pytest.param(source, kind, status, marks=() if is_kept else pytest.mark.long))
    return cases


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize(
    ("credentials", "kind", "status"), cases_of_expiry(), indirect=["credentials"]
)
def test_credentials_that_expire_during_a_run_are_read_again(
    job, bucket, proxied, credentials, kind, status
):
    """The server rejects the first key as soon as it has received a request of this kind."""
    expired = threading.Event()
    first = {"input": ("GET", "/data/in/"), "output": ("PUT", "/out/files/"), "ledger": ("PUT", "")}
    method, part = first[kind]

    def reject(request):
        if request.signer == "FIRST" and request.method == method and part in request.path:
            credentials("SECOND")
            expired.set()
        is_rejected = expired.is_set() and request.signer == "FIRST"
        return Reply(status, EXPIRED) if is_rejected else None

    credentials("FIRST")
    with proxied(reject) as proxy:
        summary = job()
        assert {request.signer for request in proxy.requests} == {"FIRST", "SECOND"}
    assert summary.outcomes == {"ok": 10}
    assert faults(f"{bucket}/out") == []


@pytest.mark.parametrize(
    ("credentials", "status"),
    [
        ("file", 400),
        ("process", 403),
        # The test above has each pair of a source and a status.
        pytest.param("file", 403, marks=pytest.mark.long),
        pytest.param("process", 400, marks=pytest.mark.long),
    ],
    indirect=["credentials"],
)
def test_credentials_that_stay_expired_fail_no_input(
    job, proxied, credentials, monkeypatch, status
):
    monkeypatch.setattr("batchmill.core.storage.retries.retry_remote.pauses", (0.0,))
    credentials("FIRST")

    def reject(request):
        is_input = request.method == "GET" and "/data/in/" in request.path
        return Reply(status, EXPIRED) if is_input else None

    with (
        proxied(reject),
        pytest.raises(StoreError, match=r"in/\d.txt: the credentials have expired.*Renew them"),
    ):
        job()
    assert job().outcomes == {"ok": 10}


def test_the_error_names_a_damaged_list_of_released_inputs(job, bucket):
    job()
    open_store(f"{bucket}/out").write(".batchmill/released/x.json", b'{"run"')
    with pytest.raises(
        LedgerError, match=r"released/x.json: is damaged, or is not a file of this ledger"
    ):
        job()


def test_a_read_and_the_listing_of_an_empty_folder_are_one_request_each(bucket, proxied):
    remote.write(f"{bucket}/out/a.json", b"{}")
    remote.write(f"{bucket}/out/empty", b"")
    with proxied() as proxy:
        assert remote.read(f"{bucket}/out/a.json") == b"{}"
        assert remote.read(f"{bucket}/out/empty") == b""
        assert remote.names(f"{bucket}/out/parts") == []
        assert remote.names(f"{bucket}/out") == ["a.json", "empty"]
        assert remote.names(bucket) == ["out"]
        assert [request.method for request in proxy.requests] == ["GET"] * 5


def test_a_folder_whose_listing_has_several_pages_is_listed_completely(bucket, monkeypatch):
    """A store lists at most a thousand files in one answer. Here these are ten."""
    import s3fs

    call, pages = s3fs.S3FileSystem.call_s3, []

    def shorten(self, method, *arguments, **options):
        assert method == "list_objects_v2"
        pages.append(call(self, method, *arguments, **options, MaxKeys=10))
        return pages[-1]

    names = [f"{number:02d}" for number in range(21)]
    fsspec.filesystem("s3").pipe({f"{bucket}/in/{name}": b"" for name in names})
    monkeypatch.setattr(s3fs.S3FileSystem, "call_s3", shorten)
    assert remote.names(f"{bucket}/in") == names
    assert [page["KeyCount"] for page in pages] == [10, 10, 1]


def test_files_of_batches_are_stored_after_a_store_that_rejected_one(inputs, proxied, bucket):
    paths = set()

    def reject_the_first(request):
        if request.method == "PUT" and request.path.endswith("sample.pt"):
            paths.add(request.path)
            return Reply(403) if len(paths) == 1 else None
        return None

    job = (str(inputs / "m.csv"), "batch_steps:Files", f"{bucket}/out")
    with proxied(reject_the_first), pytest.raises(StoreError, match="access denied"):
        run_job(*job, batch_size=2, **ONE_WORKER)
    assert run_job(*job, batch_size=2, **ONE_WORKER).outcomes == {"ok": 10}
    assert not faults(f"{bucket}/out")


def test_many_inputs_below_two_slashes_are_described_by_their_own_keys(data, store, monkeypatch):
    monkeypatch.setattr(remote, "FEW", 5)
    for number in range(6):
        store.write(f"in//{number}.txt", b"x")
    seen = remote.stat_many([f"{data}/in//{number}.txt" for number in range(6)])
    assert [found and found.size for found in seen] == [1] * 6


def test_folders_in_a_bucket_with_a_key_that_is_no_local_path_fail_alone(job, data):
    files = fsspec.filesystem("s3")
    keys = ["x/../../evil", "x//y", "./y", "n" * 256]
    for number, key in enumerate(keys):
        files.pipe_file(f"{data}/folders/{number}/{key}", b"x")
    files.pipe_file(f"{data}/folders/good/y", b"y")
    files.pipe_file(f"{data}/folders//y", b"y")
    summary = job(
        manifest=f"{data}/folders", step="steps_under_test:names", options={"input_kind": "folder"}
    )
    assert summary.outcomes == {"ok": 1, "failed": len(keys)}
    assert len(summary.failures) == len(keys)
    assert all("cannot hold" in reason for _, reason in summary.failures)


def test_an_input_that_becomes_empty_after_the_plan_is_read_as_empty(job, store):
    summary = job(step="steps_under_test:size", before=lambda: store.write("in/3.txt", b""))
    assert summary.outcomes == {"ok": 10}


def test_an_input_that_names_only_a_bucket_is_missing(job, store, bucket):
    store.write(
        "odd.csv", f"input\nin/1.txt\nin/2.txt\nin/3.txt\n{bucket}\ns3://My Bucket/x\n".encode()
    )
    assert job(manifest=f"{store.url}/odd.csv").outcomes == {"ok": 3, "missing": 2}


@pytest.mark.usefixtures("bucket")
def test_a_dataset_may_have_a_slash_at_its_end(shared_job, tmp_path):
    _, dataset = shared_job
    assert len([*open_dataset(f"{dataset}/")]) == 1
    export(f"{dataset}/", tmp_path / "shards", to="webdataset")
    with pytest.raises(OptionError, match="inside the dataset"):
        export(f"{dataset}/", f"{dataset}/shards", to="webdataset")


@pytest.mark.parametrize("credentials", ["process"], indirect=True)
def test_a_program_for_credentials_that_fails_once_is_called_again(bucket, credentials, tmp_path):
    credentials("second")
    program = tmp_path / "program"
    program.write_text(
        f'#!/bin/sh\ncd "{tmp_path}"\nmkdir called 2>/dev/null && exit 1\ncat answer.json\n'
    )
    program.chmod(0o755)
    (tmp_path / "config").write_text(f"[default]\ncredential_process = {program}\n")
    obstore_s3.forget_settings()
    obstore_s3.prepare([f"{bucket}/none"])
    assert (tmp_path / "called").is_dir()
