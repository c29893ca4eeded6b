"""The ledger commits records, selects the winning ones, and rejects damaged files."""

import random

import pandas as pd
import pytest

from batchmill import LedgerError
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.parts import PART_SCHEMA, Origin
from batchmill.core.outcome import Outcome, WrittenFile
from batchmill.core.storage import LocalStore
from batchmill.datasets.maintenance.merging import with_merged_parts


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger(LocalStore(tmp_path))
    ledger.create()
    return ledger


def record(name, kind="ok", run=1, finished_at=1.0, attempt=1, **more):
    seen = {"size": 5, "mtime_ns": 7, "content": "xxh128:1"}
    outcome = Outcome(name, f"id-{name}", kind, 1, 0.5, finished_at, "host", **seen, **more)
    return outcome, Origin("{}", "step", run, attempt)


def outcomes(state):
    rows = state.records(["input", "outcome"]).to_pylist()
    return {row["input"]: row["outcome"] for row in rows}


def test_pandas_can_read_a_committed_part(ledger, tmp_path):
    files = (WrittenFile("files/id-a/0.wav", 44, "xxh128:0"),)
    ledger.commit("000001-x-00000", [record("a", rows='[{"n":1}]', outputs=files)])
    (part,) = (tmp_path / ".batchmill/parts").iterdir()
    assert part.name.startswith("000001-x-00000-")
    row = pd.read_parquet(part).iloc[0]
    assert (row["input"], row["outcome"], row["rows"]) == ("a", "ok", '[{"n":1}]')
    (output,) = row["outputs"]
    assert output == {"path": "files/id-a/0.wav", "size": 44, "content": "xxh128:0", "pack": None}
    assert (row["size"], row["mtime_ns"], row["step"]) == (5, 7, "step")


def test_an_empty_ledger_has_all_columns(ledger):
    names = [*PART_SCHEMA.names, "result_run", "absence"]
    found = ledger.records(names)
    assert found.num_rows == 0
    assert found.column_names == names


def test_the_latest_run_wins_and_within_it_the_latest_attempt(ledger):
    """Clocks differ between machines, so no time decides."""
    ledger.commit("000002-b-00000", [record("a", "ok", run=2, finished_at=1.0)])
    ledger.commit("000001-a-00000", [record("a", "failed", run=1, finished_at=9.0)])
    ledger.commit("000001-a-00001", [record("b", "crashed", run=1, finished_at=3.0, attempt=2)])
    ledger.commit("000001-a-00002", [record("b", "failed", run=1, finished_at=4.0, attempt=1)])
    assert outcomes(ledger.state()) == {"a": "ok", "b": "crashed"}
    assert outcomes(ledger.outcomes(1)) == {"a": "failed", "b": "crashed"}


def test_a_later_run_wins_over_merged_parts_without_a_snapshot(ledger):
    """The user has removed a damaged state, as the message about it advises."""
    ledger.commit("000001-a-00000", [record("a", "failed", run=1)])
    with_merged_parts(ledger, ledger.state(), 1, many=1)
    ledger.commit("000002-a-00000", [record("a", "ok", run=2)])
    assert outcomes(ledger.state()) == {"a": "ok"}


def test_a_later_failure_in_the_same_run_does_not_replace_ok(ledger):
    ledger.commit("000001-a-00000", [record("a", "ok", run=1, finished_at=1.0)])
    ledger.commit("000001-b-00000", [record("a", "failed", run=1, finished_at=2.0)])
    assert outcomes(ledger.state()) == {"a": "ok"}
    ledger.commit("000002-c-00000", [record("a", "failed", run=2, finished_at=3.0)])
    assert outcomes(ledger.state()) == {"a": "failed"}


def test_a_later_attempt_that_fails_does_not_replace_ok(ledger):
    """Its node counted as lost, but the earlier attempt succeeded in the end."""
    ledger.commit("000001-a-00000", [record("a", "failed", attempt=2)])
    ledger.commit("000001-b-00000", [record("a", "ok", attempt=1)])
    ledger.commit("000001-c-00000", [record("a", "crashed", attempt=3)])
    assert outcomes(ledger.state()) == {"a": "ok"}


def test_the_error_names_a_damaged_part(ledger, tmp_path, seed):
    """Any flipped bit, and any missing byte, is damage."""
    ledger.commit("000001-a-00000", [record("a")])
    (part,) = (tmp_path / ".batchmill/parts").iterdir()
    whole, chance = part.read_bytes(), random.Random(seed)
    damaged = [whole[:-20], whole[:-1], b""]
    for _ in range(300):
        flipped = bytearray(whole)
        flipped[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        damaged.append(bytes(flipped))
    for content in damaged:
        part.write_bytes(content)
        with pytest.raises(LedgerError, match=rf"{part.name}: is damaged, or is not a part of"):
            ledger.records(["input", "rows"])
    part.write_bytes(whole)
    assert len(ledger.records(["input", "rows"])) == 1


def test_the_error_names_a_foreign_part(ledger, tmp_path):
    folder = tmp_path / ".batchmill/parts"
    folder.mkdir()
    pd.DataFrame({"input": ["a"]}).to_parquet(folder / "mine.parquet")
    with pytest.raises(
        LedgerError, match=r"mine\.parquet: is damaged, or is not a part of a ledger"
    ):
        ledger.records(["input", "rows"])


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"ledger": 99}', "has version 99, but this batchmill reads version 7"),
        ("x", "is not a ledger"),
    ],
)
def test_an_unknown_version_is_rejected(ledger, tmp_path, content, expected):
    (tmp_path / ".batchmill/format.json").write_text(content)
    with pytest.raises(LedgerError, match=expected):
        ledger.create()


def test_a_summary_can_be_written_and_read(ledger):
    assert ledger.runs() == []
    ledger.write_summary(1, {"inputs": 4})
    assert ledger.runs() == [1]
    assert ledger.read_summary(1) == {"inputs": 4}
    assert ledger.read_summary(2) is None


def test_any_flipped_bit_of_a_summary_is_rejected(ledger, tmp_path):
    ledger.write_summary(1, {"inputs": 4, "partitions": {"größe": 1}, "seconds": 0.25, "at": 1e22})
    path = tmp_path / ".batchmill/runs/000001/summary.json"
    whole = path.read_bytes()
    for position in range(len(whole)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[position] ^= 1 << bit
            path.write_bytes(flipped)
            with pytest.raises(LedgerError, match=r"summary\.json: is damaged.* Move it away"):
                ledger.read_summary(1)
    path.write_bytes(whole)
    assert ledger.read_summary(1)["partitions"] == {"größe": 1}
