"""Test that verification finds every changed byte of an export, and names the sample."""

import pytest
from harness.exports import animals, export

from batchmill import LedgerError, OptionError
from batchmill.datasets.exporting import index
from batchmill.datasets.exporting.verify_export import find_differences

FORMATS = ["webdataset", "huggingface"]


def found(out):
    return [(one.kind, one.path, one.input) for one in find_differences(str(out))]


def incompressible(number):
    return (
        bytes(((number * 97 + i * i * 31 + i // 7) % 256) for i in range(500))
        + b"payload%d" % number
    )


@pytest.mark.parametrize("to", FORMATS)
def test_a_flipped_byte_of_a_file_is_found(tmp_path, to):
    out = tmp_path / "x"
    result = export(animals(tmp_path / "d", content=incompressible), out, to)
    assert found(out) == []
    for name in (result.shards[0], result.shards[-1]):
        data = bytearray((out / name).read_bytes())
        data[len(data) // 4] ^= 1
        (out / name).write_bytes(data)
    differences = found(out)
    assert {path for _, path, _ in differences} == {result.shards[0], result.shards[-1]}
    assert {kind for kind, _, _ in differences} == {"changed"}


def test_the_damaged_sample_is_named(tmp_path):
    out = tmp_path / "x"
    export(animals(tmp_path / "d", content=incompressible), out)
    shard = out / "data-000000.tar"
    shard.write_bytes(shard.read_bytes().replace(b"payload1", b"payload!"))
    assert found(out) == [("changed", "data-000000.tar", "1.src")]
    # The row of a sample is part of the shard, too.
    shard.write_bytes(shard.read_bytes().replace(b"payload!", b"payload1").replace(b"dog", b"cat"))
    assert found(out) == [("changed", "data-000000.tar", "")]


@pytest.mark.parametrize("to", FORMATS)
def test_cut_missing_and_unexpected_shards_are_found(tmp_path, to):
    out = tmp_path / "x"
    names = export(animals(tmp_path / "d"), out, to).shards
    (out / names[0]).write_bytes((out / names[0]).read_bytes()[:1024])
    (out / names[1]).rename(out / f"{names[1]}.old")
    differences = found(out)
    assert {one[:2] for one in differences} == {
        ("changed", names[0]), ("missing", names[1]), ("unexpected", f"{names[1]}.old"),
    }  # fmt: skip


def test_an_incomplete_export_cannot_be_verified(tmp_path):
    with pytest.raises(OptionError, match="is not an export"):
        found(tmp_path)
    export(animals(tmp_path / "d"), tmp_path / "x")
    index = tmp_path / "x" / ".batchmill-export" / "index.json"
    whole = index.read_bytes()
    index.write_bytes(whole[:-9])
    for call in (lambda: found(tmp_path / "x"), lambda: export(tmp_path / "d", tmp_path / "x")):
        with pytest.raises(
            LedgerError, match=r"index\.json: .* Delete the export, and export again"
        ):
            call()
    index.write_bytes(whole)
    index.rename(index.with_name("begun.json"))
    with pytest.raises(OptionError, match="is not complete"):
        found(tmp_path / "x")


def test_an_export_of_another_version_is_refused(tmp_path, monkeypatch):
    export(animals(tmp_path / "d"), tmp_path / "x")
    monkeypatch.setattr(index, "VERSION", 2)
    with pytest.raises(OptionError, match="is an export of version 1, and this batchmill reads"):
        [*find_differences(str(tmp_path / "x"))]
