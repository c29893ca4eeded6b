"""The ledger records the partition of each group, and a later run or check finds it there."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness.jobs import run_job
from harness.published import publish_table

from batchmill import LedgerError
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.partitions.partitioning import Partitioning
from batchmill.core.partitions.record import SCHEMA, Assignment, last_assignment, write_assignment
from batchmill.core.storage import LocalStore

HALVES = Partitioning(shares={"train": 0.5, "test": 0.5})


@pytest.fixture
def ledger(tmp_path):
    return Ledger(LocalStore(tmp_path))


def assignment(partition="train", **changes):
    rows = [["a", None], ["group:g", "group:h"], [partition, "test"], [True, False]]
    table = pa.table(dict(zip(SCHEMA.names, rows, strict=True)), SCHEMA)
    return Assignment(partitioning=replace(HALVES, **changes), rows=table)


def version_with(ledger, run, file):
    """Record a version with the assignment of a file."""
    snapshot = publish_table(ledger.store.url, pa.table({"input": ["a"]}), run)
    ledger.snapshots.record(replace(snapshot, assignment=file))


def test_the_assignment_of_the_last_version_counts_and_an_equal_one_is_not_written(ledger):
    assert last_assignment(ledger) is None
    reordered = assignment("test", seed=7, shares={"test": 0.5, "train": 0.5})
    last = None
    for run, given in enumerate(
        [assignment(), assignment("test"), assignment("test", seed=7), reordered], 1
    ):
        file = write_assignment(ledger, run, given)
        assert ledger.store.exists(file["name"])
        assert last_assignment(ledger) == last, "the run has published nothing yet"
        version_with(ledger, run, file)
        last = given
        assert last_assignment(ledger) == given
        assert write_assignment(ledger, run + 100, given) == file
    assert last_assignment(ledger).by_group() == {"group:g": "test", "group:h": "test"}
    ledger.store.delete(file["name"])
    assert last_assignment(ledger) is None


@pytest.mark.parametrize("content", [b"no table", b""])
def test_a_record_with_another_content_is_rejected_by_name(ledger, content):
    file = write_assignment(ledger, 2, assignment())
    version_with(ledger, 2, file)
    ledger.store.write(file["name"], content)
    message = r"/000002-partitions\.parquet: is damaged\. .* Move it away"
    with pytest.raises(LedgerError, match=message):
        last_assignment(ledger)


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
