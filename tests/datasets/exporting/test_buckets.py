"""Test exports from a bucket and to a bucket."""

import shutil

import pytest
from harness.exports import animals, export, files_of
from harness.object_store import upload

from batchmill import OptionError, StoreError
from batchmill.core.storage import open_store, remote
from batchmill.datasets.exporting.verify_export import find_differences

pytestmark = pytest.mark.end_to_end
SIZE = 12


@pytest.mark.parametrize("to", ["webdataset", "huggingface"])
def test_a_bucket_gets_the_same_bytes_as_a_folder(tmp_path, bucket, to):
    dataset, there = animals(tmp_path / "d", SIZE), f"{bucket}/shards"
    export(dataset, tmp_path / "x", to)
    upload(dataset, f"{bucket}/d")
    result = export(f"{bucket}/d", there, to, num_workers=2)
    store = open_store(there)
    wanted = files_of(tmp_path / "x")
    names = [name for name in wanted if not name.startswith(".")]
    assert {name: store.read(name) for name in result.shards} == {n: wanted[n] for n in names}
    assert export(f"{bucket}/d", there, to).written == 0
    assert list(find_differences(there)) == []
    store.write(result.shards[0], b"?")
    store.delete(result.shards[1])
    found = sorted((one.kind, one.path) for one in find_differences(there))
    assert found == [("changed", result.shards[0]), ("missing", result.shards[1])]
    # Another number of shards has other names, and the old ones go.
    fewer = export(f"{bucket}/d", there, to, where="label != 'dog'")
    assert list(find_differences(there)) == []
    suffix = result.shards[0].rpartition(".")[2]
    assert sorted(name for name in remote.find(there) if name.endswith(suffix)) == sorted(
        fewer.shards
    )


def test_a_missing_file_in_a_bucket_is_named(tmp_path, bucket):
    dataset = animals(tmp_path / "d", SIZE)
    shutil.move(dataset / "files" / "003.bin", tmp_path)
    upload(dataset, f"{bucket}/d")
    with pytest.raises(StoreError, match=r"files/003.bin: is missing"):
        export(f"{bucket}/d", tmp_path / "x")


def test_a_web_server_cannot_be_written_to(tmp_path):
    with pytest.raises(OptionError, match=r"https://example\.com/x"):
        export(animals(tmp_path / "d", SIZE), "https://example.com/x")
