"""Test that tables are written again only if their content changes."""

import os

import pandas as pd
import pytest
from harness.jobs import run_job

from batchmill import open_dataset
from batchmill.core.ledger.open import open_ledger
from batchmill.datasets.maintenance.verify import examine, verify
from batchmill.datasets.publishing.run_summary import summarise
from batchmill.errors import LedgerError

STEP = "batchmill.steps.words:split"
TABLES = ("metadata.parquet", "metadata.csv", "failures.csv")


@pytest.fixture
def dataset(tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        (tmp_path / "in" / f"{name}.txt").write_text(2 * name)
    _list(tmp_path, "a.txt,x\nb.txt,y\n")
    run_job(tmp_path / "in" / "m.csv", STEP, tmp_path / "out")
    return tmp_path


def _list(folder, rows):
    (folder / "in" / "m.csv").write_text("input,label\n" + rows)


def _publish(folder):
    """Run the job again, which executes nothing. Return the names of the replaced tables."""
    before = {name: _inode(folder, name) for name in TABLES}
    assert run_job(folder / "in" / "m.csv", STEP, folder / "out").executed == 0
    return [name for name in TABLES if _inode(folder, name) != before[name]]


def _inode(folder, name):
    path = folder / "out" / name
    return os.stat(path).st_ino if path.exists() else None


def test_unchanged_tables_are_not_written_again(dataset):
    ledger = open_ledger(str(dataset / "out"))
    before = ledger.changes()
    assert _publish(dataset) == []
    assert ledger.changes() == before, "no snapshot is written without a change"
    assert list(verify(ledger)) == []


@pytest.mark.parametrize("rows", ["b.txt,y\na.txt,x\n", "a.txt,x\nb.txt,z\n", "a.txt,x\n"])
def test_another_manifest_rewrites_the_tables(dataset, rows):
    _list(dataset, rows)
    assert "metadata.parquet" in _publish(dataset)
    assert _publish(dataset) == []


def test_another_record_rewrites_the_tables(dataset):
    (dataset / "in" / "b.txt").write_text("changed")
    before = _inode(dataset, "metadata.parquet")
    run_job(dataset / "in" / "m.csv", STEP, dataset / "out")
    assert _inode(dataset, "metadata.parquet") != before
    assert _publish(dataset) == []


@pytest.mark.parametrize("name", TABLES)
def test_a_missing_or_truncated_table_is_written_again(dataset, name):
    path = dataset / "out" / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert name in _publish(dataset)
    assert path.read_bytes() == whole
    path.unlink()
    assert name in _publish(dataset)
    assert path.read_bytes() == whole


@pytest.mark.parametrize("name", TABLES)
def test_a_changed_table_is_found_and_written_again(dataset, name):
    path = dataset / "out" / name
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 1
    path.write_bytes(changed)
    ledger = open_ledger(str(dataset / "out"))
    (found,) = examine(ledger)
    assert (found.kind, found.path) == ("changed", name)
    assert name in _publish(dataset)
    assert path.read_bytes() == whole
    assert examine(ledger) == []


def test_an_interrupted_publication_is_repeated(dataset, monkeypatch):
    """The manifest returns to its earlier state. No table of the interrupted run may remain."""
    _list(dataset, "a.txt,x\nb.txt,Y\n")

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("batchmill.datasets.publishing.publish.pcsv.write_csv", stop)
        with pytest.raises(KeyboardInterrupt):
            _publish(dataset)
    _list(dataset, "a.txt,x\nb.txt,y\n")
    _publish(dataset)
    assert pd.read_parquet(dataset / "out" / "metadata.parquet")["label"].tolist() == ["x", "y"]


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_the_tables_are_written_again_without_the_damaged_record_of_the_snapshot(dataset, text):
    path = dataset / "out" / ".batchmill" / "snapshots" / "000001.json"
    path.write_text(text)
    with pytest.raises(LedgerError, match=r"000001\.json: .*Move it away"):
        _publish(dataset)
    path.unlink()
    assert "metadata.parquet" in _publish(dataset)
    assert list(verify(open_ledger(str(dataset / "out")), hash_files=True)) == []
    assert len(open_dataset(dataset / "out")) == 2


@pytest.mark.parametrize(
    "change", [lambda path: path.write_bytes(b"x"), lambda path: path.unlink()]
)
def test_a_damaged_or_missing_table_of_the_last_version_is_replaced(dataset, change):
    change(dataset / "out" / ".batchmill" / "snapshots" / "000001-table.parquet")
    _publish(dataset)
    assert len(open_dataset(dataset / "out")) == 2


@pytest.mark.parametrize("name", ["plan.json", "plan.arrow", "summary.json"])
def test_verify_reports_a_damaged_plan_or_summary_and_the_next_run_replaces_it(dataset, name):
    ledger = open_ledger(str(dataset / "out"))
    path = dataset / "out" / ".batchmill" / "runs" / "000001" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    (found,) = verify(ledger)
    assert (found.kind, found.path) == ("changed", f".batchmill/runs/000001/{name}")
    examine(ledger, repair=True)
    assert list(verify(ledger)) == []
    assert ledger.read_summary(1) is None
    assert run_job(dataset / "in" / "m.csv", STEP, dataset / "out").executed == 0
    assert ledger.runs() == [1, 2]
    assert summarise(ledger, 2).outcomes == {"ok": 2}
