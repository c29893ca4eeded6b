"""A step whose parameter is annotated BinaryIO gets an open file, and reads only what it needs."""

import json
import os
from pathlib import Path
from typing import BinaryIO

import fsspec
import pytest
from harness.jobs import job_of, run_job
from harness.live import STEP_MODULES
from harness.s3_proxy import Reply

from batchmill import OptionError, StoreError, try_one
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.planning.prepare import prepare
from batchmill.core.storage import open_store, remote
from batchmill.core.storage.ranges import HEAD_BYTES
from batchmill.datasets.maintenance.versions import compare_versions

BYTES = 4 * 2**20
NEVER_AGAIN = FailurePolicy(retries=0)


@pytest.fixture(autouse=True)
def in_support(monkeypatch):
    monkeypatch.chdir(STEP_MODULES)


@pytest.fixture
def put(bucket):
    """Return a function that creates an object, and returns its URL."""

    def create(key, data, address=None):
        options = {"endpoint_url": address, "skip_instance_cache": True} if address else {}
        fsspec.filesystem("s3", **options).pipe_file(f"{bucket}/{key}", data)
        return f"{bucket}/{key}"

    return create


def rows_of(seen):
    return {outcome.input: json.loads(outcome.rows) for outcome in seen}


def records(dataset):
    return (
        Ledger(open_store(str(dataset))).records(["input", "content", "etag", "size"]).to_pylist()
    )


def expected(name, data):
    return {"name": name, "first": data[:4].hex(), "last": data[-4:].hex(), "size": len(data)}


@pytest.mark.parametrize("attribute", ["header", "first_word"])
def test_a_local_input_is_a_plain_file(tmp_path, attribute):
    data = os.urandom(BYTES)
    (tmp_path / "a.bin").write_bytes(data)
    result = try_one(tmp_path / "a.bin", f"open_steps:{attribute}")
    assert not result.error
    (row,) = result.rows
    assert row == {key: value for key, value in expected("a.bin", data).items() if key in row}


def test_the_file_is_open_while_rows_are_yielded_and_closed_afterwards(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"abc")
    given = []

    def step(source: BinaryIO):
        given.append(source)
        yield {"read": source.read().decode()}

    assert try_one(tmp_path / "a.txt", step).rows == [{"read": "abc"}]
    (source,) = given
    assert source.closed
    rows = try_one(tmp_path / "a.txt", "open_steps:rows_later").rows
    assert [row["first"] for row in rows] == ["61", "62", "63"]


def test_only_the_header_of_each_object_is_transferred(proxied, put, bucket, tmp_path):
    data = {f"{number}.bin": os.urandom(BYTES) for number in range(4)}
    for name, content in data.items():
        put(f"in/{name}", content)
    seen = []
    with proxied() as proxy:
        run_job(f"{bucket}/in", "open_steps:first_word", tmp_path / "out", seen=seen)
    gets = [one for one in proxy.requests if one.path.endswith(".bin")]
    assert [one.method for one in gets] == ["GET"] * 4
    assert sum(proxy.sent) < 4 * HEAD_BYTES + 20_000
    assert rows_of(seen) == {name: [{"first": data[name][:4].hex()}] for name in data}


def test_any_part_can_be_read_in_workers_and_in_try(put, bucket, tmp_path):
    sizes = [4, HEAD_BYTES, HEAD_BYTES + 1, BYTES]
    data = {f"{size}.bin": os.urandom(size) for size in sizes}
    urls = {name: put(f"in/{name}", content) for name, content in data.items()}
    seen = []
    run_job(f"{bucket}/in", "open_steps:header", tmp_path / "out", seen=seen)
    assert rows_of(seen) == {name: [expected(name, data[name])] for name in data}
    found = {record["input"]: record for record in records(tmp_path / "out")}
    assert set(found) == set(data)
    for name, url in urls.items():
        assert try_one(url, "open_steps:header").rows == [expected(name, data[name])]
        assert try_one(url, "open_steps:counter").rows == [{"bytes": len(data[name])}]
        record = found[name]
        assert (record["size"], record["etag"]) == (len(data[name]), remote.stat(url).etag)
        assert bool(record["content"]) == (len(data[name]) <= HEAD_BYTES), name


def test_an_empty_object_can_be_opened(put, bucket, tmp_path):
    url = put("in/a.bin", b"")
    seen = []
    run_job(f"{bucket}/in", "open_steps:counter", tmp_path / "out", seen=seen)
    assert rows_of(seen) == {"a.bin": [{"bytes": 0}]}
    assert try_one(url, "open_steps:counter").rows == [{"bytes": 0}]


def test_an_unchanged_object_is_not_executed_again_and_a_changed_one_is_not_read_by_the_plan(
    proxied, put, bucket, tmp_path
):
    data = os.urandom(BYTES)
    put("in/a.bin", data)
    out = tmp_path / "out"
    run_job(f"{bucket}/in", "open_steps:header", out)
    assert prepare(job_of(f"{bucket}/in", "open_steps:header", out)).plan.counts["unchanged"] == 1
    put("in/a.bin", data[::-1])
    with proxied() as proxy:
        counts = prepare(job_of(f"{bucket}/in", "open_steps:header", out)).plan.counts
    assert counts["changed"] == 1
    assert not [one for one in proxy.requests if one.method == "GET" and "a.bin" in one.path]


def test_a_comparison_of_versions_names_the_changed_input(put, bucket, tmp_path):
    out = tmp_path / "out"
    for data in (bytes(BYTES), b"new " * 2**20):
        put("in/a.bin", data)
        run_job(f"{bucket}/in", "open_steps:header", out)
    found = compare_versions(Ledger(open_store(str(out))), 1, 2)
    assert found.changed == {"input": ["a.bin"]}


def test_a_comparison_of_versions_names_a_step_that_reads_in_parts_since_then(
    put, bucket, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("reading_less.py").write_text(
        "from typing import BinaryIO\n"
        "def whole(source): return {'first': source.read_bytes()[:1].hex()}\n"
        "def start(source: BinaryIO): return {'first': source.read(2).hex()}\n"
    )
    put("in/a.bin", bytes(BYTES))
    for step in ("whole", "start"):
        run_job(f"{bucket}/in", f"reading_less:{step}", "out", options={"replace_step": True})
    found = compare_versions(Ledger(open_store("out")), 1, 2)
    assert found.changed == {"step": ["a.bin"]}


@pytest.mark.parametrize("attribute", ["header", "hides_errors"])
def test_an_object_that_changes_while_it_is_read_fails(proxied, put, bucket, tmp_path, attribute):
    put("in/a.bin", bytes(BYTES))
    address, changed, seen = os.environ["AWS_ENDPOINT_URL"], [], []

    def change(request):
        if request.path.endswith("a.bin"):
            changed.append(request)
            if len(changed) == 2:
                put("in/a.bin", b"new " * 2**20, address)

    job = (f"{bucket}/in", f"open_steps:{attribute}", tmp_path / "out")
    with proxied(change):
        run_job(*job, seen=seen, policy=NEVER_AGAIN)
        assert [outcome.kind for outcome in seen] == ["failed"]
        assert "it changed while it was read. Run the same command again." in seen[0].message
        seen.clear()
        run_job(*job, seen=seen)
    assert [outcome.kind for outcome in seen] == ["ok"]


def test_an_object_that_changes_while_try_reads_it_fails(proxied, put, bucket):
    url = put("a.bin", bytes(BYTES))
    address, changed = os.environ["AWS_ENDPOINT_URL"], []

    def change(request):
        if request.method == "GET" and request.path.endswith("a.bin"):
            changed.append(request)
            if len(changed) == 2:
                put("a.bin", b"new " * 2**20, address)

    with proxied(change):
        result = try_one(url, "open_steps:header")
    assert "it changed while it was read" in str(result)


def test_a_store_that_fails_while_a_part_is_read_leaves_the_input_pending(
    proxied, put, bucket, tmp_path, monkeypatch
):
    """The input is not at fault."""
    monkeypatch.setattr("batchmill.core.storage.retries.retry_remote.pauses", ())
    put("in/a.bin", bytes(BYTES))
    asked, seen = [], []

    def fail(request):
        if request.path.endswith("a.bin"):
            asked.append(request)
            if len(asked) > 1:
                return Reply(400, b"<Error><Code>Odd</Code></Error>")
        return None

    with proxied(fail), pytest.raises(StoreError, match="400 Bad Request"):
        run_job(f"{bucket}/in", "open_steps:hides_errors", tmp_path / "out", seen=seen)
    assert not seen


def test_further_files_are_paths(put, bucket, tmp_path):
    data = os.urandom(BYTES)
    put("a.bin", data)
    put("mask.png", b"mask")
    manifest = tmp_path / "manifest.csv"
    manifest.write_text(f"input,mask,label\n{bucket}/a.bin,{bucket}/mask.png,7\n")
    seen = []
    options = {"file_columns": "mask"}
    job = (manifest, "open_steps:with_mask", tmp_path / "out")
    run_job(*job, seen=seen, options=options)
    (outcome,) = seen
    assert (outcome.kind, outcome.content) == ("ok", "")
    assert (tmp_path / "out" / outcome.outputs[0].path).read_bytes() == data[:4] + b"mask"
    run_job(*job, seen=seen, options=options)
    assert len(seen) == 1
    put("mask.png", b"MASK")
    run_job(*job, seen=seen, options=options)
    assert len(seen) == 2


def test_an_input_in_a_pack_is_a_plain_file(bucket, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_bytes(b"content")
    made = f"{bucket}/made"
    run_job(tmp_path / "in", "steps_under_test:copy", made, options={"pack": "1MB"})
    seen = []
    run_job(made, "open_steps:header", tmp_path / "out", seen=seen)
    (row,) = rows_of(seen).values()
    assert (row[0]["first"], row[0]["size"]) == (b"cont".hex(), 7)


def test_folders_cannot_be_opened(tmp_path):
    (tmp_path / "in" / "one").mkdir(parents=True)
    (tmp_path / "in" / "one" / "a.txt").write_bytes(b"content")
    message = "takes an open file .* Annotate its first parameter as Path"
    with pytest.raises(OptionError, match=message):
        prepare(job_of(tmp_path / "in", "open_steps:header", tmp_path / "out", input_kind="folder"))
    with pytest.raises(OptionError, match=message):
        try_one(tmp_path / "in" / "one", "open_steps:header", input_kind="folder")
