"""The ledger records the partition of each group, and a later run or check finds it there."""

import json
from dataclasses import asdict, replace
from functools import partial
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jobs import run_job

from batchmill import LedgerError
from batchmill.layout import PARTITIONS
from batchmill.ledger.ledger import Ledger
from batchmill.partitions import record
from batchmill.partitions.partitioning import Partitioning
from batchmill.partitions.record import SCHEMA, Assignment, last_assignment, last_with
from batchmill.storage import LocalStore

HALVES = Partitioning(shares={"train": 0.5, "test": 0.5})
OPTIONS = asdict(HALVES)


@pytest.fixture
def ledger(tmp_path):
    return Ledger(LocalStore(tmp_path))


def assignment(partition="train", **changes):
    rows = [["a", None], ["group:g", "group:h"], [partition, "test"], [True, False]]
    table = pa.table(dict(zip(SCHEMA.names, rows, strict=True)), SCHEMA)
    return Assignment(partitioning=replace(HALVES, **changes), rows=table)


def test_only_changed_assignments_are_written_and_the_last_one_up_to_a_run_counts(ledger):
    ledger.store.write(f"{PARTITIONS}/notes.parquet", b"not an assignment")
    assert last_assignment(ledger) is None
    assert record.name_of_last(ledger) == ""
    moved, reseeded = assignment("test"), assignment("test", seed=7)
    reordered = assignment("test", seed=7, shares={"test": 0.5, "train": 0.5})
    runs = {2: assignment(), 999_999: moved, 1_000_000: reseeded, 1_000_001: reordered}
    for run, written in runs.items():
        record.write_assignment(ledger, run, written)
        record.write_assignment(ledger, run + 100, written)
    for until, expected in ((1, None), (999_998, runs[2]), *runs.items(), (None, reordered)):
        assert last_assignment(ledger, until) == expected
    assert last_assignment(ledger).by_group() == {"group:g": "test", "group:h": "test"}
    assert last_with(ledger, HALVES) == moved
    assert last_with(ledger, replace(HALVES, seed=8)) is None
    assert [run for run in (1, 102, *runs) if record.has_assigned(ledger, run)] == [*runs]
    last = record.name_of_last(ledger)
    record.forget_earlier(ledger)
    assert ledger.store.names(PARTITIONS) == [last, "notes.parquet"]
    assert last_assignment(ledger) == reordered


def encoded(version=b"1", options=OPTIONS, columns=SCHEMA.names):
    metadata = {b"batchmill.partitions": version, b"batchmill.partitioning": json.dumps(options)}
    table = assignment().rows.select(columns).replace_schema_metadata(metadata)
    pq.write_table(table, file := BytesIO())
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "seal", "message"),
    [
        (encoded(), "-0123456789abcdef", r"is damaged\. Its content does not match the hash"),
        (encoded(b"2"), "", "has version 2, but this batchmill supports version 1"),
        (b"no table", "", r"cannot be read .*Move the file away"),
        (encoded(columns=SCHEMA.names[:3]), "", r"cannot be read .*Move the file away"),
        (encoded(options={"parts": 2}), "", r"cannot be read .*Move the file away"),
    ],
    ids=["other hash", "other version", "no table", "no column", "other options"],
)
def test_a_record_that_cannot_be_trusted_is_rejected_by_name(ledger, content, seal, message):
    ledger.store.write(f"{PARTITIONS}/000001.parquet", encoded())
    assert last_assignment(ledger) == assignment(), "older versions wrote no hash"
    ledger.store.write(f"{PARTITIONS}/000002{seal}.parquet", content)
    for read in (last_assignment, partial(last_with, partitioning=HALVES)):
        with pytest.raises(LedgerError, match=rf"/000002{seal}\.parquet: {message}"):
            read(ledger)


def test_a_withdrawn_input_keeps_a_group_with_a_long_number(words, tmp_path):
    users = {"a.txt": 12345678901234567, "b.txt": 12345678901234567, "c.txt": None}
    users |= {"d.txt": 12345678901234568}
    column = pa.array(users.values(), pa.int64())
    whole = pa.table({"input": [*users], "user": column})
    step = "batchmill.steps.words:split"
    pq.write_table(whole, words / "all.parquet")
    pq.write_table(whole.slice(1, 1), words / "b.parquet")
    run_job(words / "all.parquet", step, tmp_path / "out")
    options = {"partition": "train=0.5,test=0.5", "group_by": "user", "seed": 1}
    run_job(words / "b.parquet", step, tmp_path / "out", options=options)
    rows = last_assignment(Ledger(LocalStore(tmp_path / "out"))).rows.to_pylist()
    groups = {row["input"]: row["group"] for row in rows}
    assert groups["a.txt"] == groups["b.txt"] == "group:12345678901234567"
    assert groups["d.txt"] == "group:12345678901234568"
