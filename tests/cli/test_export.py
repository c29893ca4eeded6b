"""Test the command `batchmill export`."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness.exports import animals

import batchmill
from batchmill.cli.main import main


@pytest.fixture
def call(capsys):
    """Return a function that runs a command, and returns its exit code, output and messages."""

    def run(*words):
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        return ended.value.code, *capsys.readouterr()

    return run


def test_export_verify_and_export_again(tmp_path, call):
    dataset, out = animals(tmp_path / "d"), tmp_path / "x"
    words = ["export", dataset, "--to", "webdataset", out, "--shard-size", "10K", "--num-workers=1"]
    code, printed, messages = call(*words)
    shards = len(list(out.glob("*.tar")))
    assert (code, shards > 4) == (0, True)
    assert printed.startswith(f"24 samples in {shards} shards (")
    assert printed.endswith(f", {shards} written now): {out}/data-000000.tar\n")
    assert messages.splitlines()[-1] == f"{shards}/{shards} shards"
    assert call("export", "--verify", out) == (0, f"{out}: matches its index.\n", "")
    (out / "data-000001.tar").unlink()
    code, printed, _ = call("export", "--verify", out)
    assert (code, printed.splitlines()[0]) == (1, "missing: data-000001.tar")
    assert json.loads(call("export", "--verify", out, "--json")[1]) == [
        {"kind": "missing", "path": "data-000001.tar", "sample": "", "input": ""}
    ]
    code, printed, messages = call(*words, "--json")
    assert (code, json.loads(printed)["written"], messages) == (0, 1, "")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["d"], "give a dataset, a folder or URL for the shards, and --to"),
        (["d", "x"], "give a dataset, a folder or URL for the shards, and --to"),
        (["d", "--verify", "x"], "--verify takes the folder of an export"),
        (["--verify", "x", "--where", "a == 1"], "--verify takes the folder of an export"),
        (["--verify", "x", "--shuffle", "0"], "--verify takes the folder of an export"),
        (["--verify", "x", "--shard-size", "1M"], "--verify takes the folder of an export"),
        (["d", "x", "--to", "tar"], "tar"),
        (["d", "x", "--to", "webdataset", "--shard-size", "big"], "--shard-size big: expected"),
        (["d", "x", "--to", "webdataset", "--partition", "cow"], "has no column 'partition'"),
        (["--verify", "x", "--class-label", "a"], "--verify takes the folder of an export"),
        (["d", "x", "--to", "webdataset", "--class-label", "a"], "has class labels"),
        (["d", "s3:/b/x", "--to", "webdataset"], "Write s3://b/x."),
        (["none", "x", "--to", "webdataset"], "there is no such folder"),
    ],
)
def test_mistakes_are_named(tmp_path, call, monkeypatch, words, why):
    monkeypatch.chdir(tmp_path)
    animals(tmp_path / "d")
    code, printed, messages = call("export", *words)
    assert (code, printed) == (2, "")
    assert why in messages
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_an_administrator_can_limit_where_the_command_writes(tmp_path, call, monkeypatch):
    dataset = animals(tmp_path / "allowed" / "d")
    monkeypatch.setenv("BATCHMILL_ALLOWED_DATASETS", str(tmp_path / "allowed"))
    code, _, messages = call("export", dataset, tmp_path / "elsewhere", "--to", "webdataset")
    assert (code, "BATCHMILL_ALLOWED_DATASETS" in messages) == (2, True)
    assert not (tmp_path / "elsewhere").exists()


def test_the_python_calls_do_the_same(tmp_path):
    dataset, out = animals(tmp_path / "d", partition=["train", "test"] * 12), tmp_path / "x"
    given = {"to": "huggingface", "partition": "train", "class_label": "label"}
    result = batchmill.export(dataset, out, **given, shard_size="10K")
    assert isinstance(result, batchmill.ExportResult)
    assert (result.samples, result.written) == (12, len(result.shards))
    assert pq.read_schema(out / result.shards[0]).field("label").type == pa.int64()
    assert batchmill.verify_export(out).empty
    (out / result.shards[0]).write_bytes(b"?")
    assert batchmill.verify_export(out)["path"].tolist() == [result.shards[0]]
