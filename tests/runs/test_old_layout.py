"""A dataset of an older batchmill opens, and an unchanged run over it executes nothing."""

import json
import shutil

import pandas as pd
import pyarrow as pa
import pytest
from copying_job import CopyingJob

from batchmill import open_dataset
from batchmill.ledger.parts import PART_SCHEMA, write_hashed
from batchmill.maintenance.verify import verify


@pytest.fixture
def old(tmp_path, monkeypatch):
    """Return a job whose dataset has files/INPUT_ID, no versions, and parts with fewer columns."""
    monkeypatch.chdir(tmp_path)
    job = CopyingJob(tmp_path, 4)
    job.run()
    ledger = job.dataset / ".batchmill"
    shutil.rmtree(ledger / "versions")
    (ledger / "published.json").unlink()
    parts = job.ledger.part_names()  # A slow run commits several.
    records = pa.concat_tables(map(job.ledger.read_part, parts))
    records = records.drop_columns(["attempt", "result_run"])
    records = records.replace_schema_metadata(PART_SCHEMA.metadata)
    job.ledger.delete_parts(parts)
    names = {}
    for folder in (job.dataset / "files").iterdir():
        names[folder.name] = folder.name.partition(".")[0]
        folder.rename(folder.with_name(names[folder.name]))

    def earlier(path):
        return path.replace(folder_of(path), names[folder_of(path)])

    def folder_of(path):
        return path.split("/")[1]

    rows = [json.loads(text) for text in records["rows"].to_pylist()]
    for row in (row for some in rows for row in some):
        row["output"] = earlier(row["output"])
    outputs = records["outputs"].to_pylist()
    for file in (file for files in outputs for file in files):
        file["path"] = earlier(file["path"])
    for name, values in (("rows", [json.dumps(some) for some in rows]), ("outputs", outputs)):
        place = records.schema.get_field_index(name)
        kind = records.schema.field(name).type
        records = records.set_column(place, name, pa.array(values, kind))
    write_hashed(job.ledger.store, ".batchmill/parts/000001-old-00000", records)
    frame = pd.read_parquet(job.dataset / "metadata.parquet")
    frame["output"] = [earlier(path) for path in frame["output"]]
    frame.to_parquet(job.dataset / "metadata.parquet", index=False)
    return job


def test_an_old_dataset_opens_and_an_unchanged_run_executes_nothing(old):
    opened = open_dataset(old.dataset)
    assert sorted(sample.data for sample in opened) == old.names
    assert [one.kind for one in verify(old.ledger, hash_files=True)] == []
    assert old.run() == 0
    assert [one.kind for one in verify(old.ledger, hash_files=True)] == []
    assert [version.number for version in old.ledger.versions.read_all()] == [2]


def test_a_changed_run_leaves_the_files_of_an_old_dataset_to_its_readers(old):
    assert old.run() == 0
    opened = open_dataset(old.dataset)
    assert old.run(times=2) == 4
    assert sorted(sample.data for sample in opened) == old.names
    assert old.run(times=3) == 4
    assert len(list((old.dataset / "files").iterdir())) == 8, "the first files are removed"
    assert list(verify(old.ledger, hash_files=True)) == []
