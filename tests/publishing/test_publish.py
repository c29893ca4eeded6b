"""Tables are written again where they would be others, and only there."""

import os

import pandas as pd
import pytest
from jobs import run_job

from batchmill.maintenance.verify import verify
from batchmill.planning.job import make_job, prepare
from batchmill.publishing.publish import publish_changes

STEP = "batchmill.steps.words:split"
TABLES = ("metadata.parquet", "metadata.csv", "failures.csv")


@pytest.fixture
def dataset(tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        (tmp_path / "in" / f"{name}.txt").write_text(2 * name)
    _list(tmp_path, "a.txt,x\nb.txt,y\n")
    run_job(tmp_path / "in" / "m.csv", STEP, tmp_path / "out")
    _publish(tmp_path)
    return tmp_path


def _list(folder, rows):
    (folder / "in" / "m.csv").write_text("input,label\n" + rows)


def _prepared(folder):
    return prepare(
        make_job(manifest=str(folder / "in" / "m.csv"), step=STEP, output=str(folder / "out"))
    )


def _publish(folder):
    """Publish; return which tables are other files than before."""
    prepared = _prepared(folder)
    before = {name: _inode(folder, name) for name in TABLES}
    publish_changes(prepared.ledger, prepared.manifest)
    return [name for name in TABLES if _inode(folder, name) != before[name]]


def _inode(folder, name):
    path = folder / "out" / name
    return os.stat(path).st_ino if path.exists() else None


def test_what_is_the_same_stays(dataset):
    assert _publish(dataset) == []
    assert list(verify(_prepared(dataset).ledger)) == []


@pytest.mark.parametrize("rows", ["b.txt,y\na.txt,x\n", "a.txt,x\nb.txt,z\n", "a.txt,x\n"])
def test_another_manifest(dataset, rows):
    _list(dataset, rows)
    assert "metadata.parquet" in _publish(dataset)
    assert _publish(dataset) == []


def test_another_record(dataset):
    (dataset / "in" / "b.txt").write_text("changed")
    run_job(dataset / "in" / "m.csv", STEP, dataset / "out")
    assert "metadata.parquet" in _publish(dataset)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_is_gone_or_was_cut(dataset, name):
    path = dataset / "out" / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert name in _publish(dataset)
    assert path.read_bytes() == whole
    path.unlink()
    assert name in _publish(dataset)
    assert path.read_bytes() == whole


def test_one_that_was_stopped_while_it_published(dataset, monkeypatch):
    """Back to what was published before: no table may be one of those in between."""
    _list(dataset, "a.txt,x\nb.txt,Y\n")

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("batchmill.publishing.tables.pcsv.write_csv", stop)
        with pytest.raises(KeyboardInterrupt):
            _publish(dataset)
    _list(dataset, "a.txt,x\nb.txt,y\n")
    _publish(dataset)
    assert pd.read_parquet(dataset / "out" / "metadata.parquet")["label"].tolist() == ["x", "y"]


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_record_that_is_torn(dataset, text):
    (dataset / "out" / ".batchmill" / "published.json").write_text(text)
    assert "metadata.parquet" in _publish(dataset)
