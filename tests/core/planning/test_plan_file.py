"""A run's plan is written once, read in parts, and rejected by name if it is damaged."""

import random
import re
from pathlib import Path

import pyarrow as pa
import pytest

from batchmill import LedgerError
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.planning.plan_file import ROWS_PER_STREAM, PlanFile
from batchmill.core.storage import LocalStore

FLIPS = 2000


@pytest.fixture
def plan(tmp_path):
    """A function that writes a plan with a number of inputs, and returns it."""

    def write(inputs):
        ledger = Ledger(LocalStore(tmp_path))
        ledger.create()
        plan = PlanFile(ledger, 1)
        rows = pa.table({"input": pa.array([f"{n}.wav" for n in range(inputs)], pa.string())})
        starts = range(0, inputs or 1, ROWS_PER_STREAM)
        streams = [rows.slice(start, ROWS_PER_STREAM) for start in starts]
        plan.write({"step": "a:b", "root": "/tmp/\udcff"}, lambda: streams)
        return plan

    return write


def path_of(plan, name):
    return Path(plan.ledger.store.url_of(name))


def flip(path, position, bit):
    with open(path, "r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1 << bit]))


def test_a_plan_is_read_in_any_range(plan):
    written = plan(10_000)
    names = [f"{n}.wav" for n in range(10_000)]
    assert written.settings() == {"step": "a:b", "root": "/tmp/\udcff"}
    assert written.count_rows() == 10_000
    for start, stop in [(0, 1), (4095, 4097), (4096, 8192), (5, 9999), (9999, 10_000)]:
        assert written.rows(start, stop)["input"].to_pylist() == names[start:stop]
    assert written.names().to_pylist() == names
    assert written.damaged_file() is None


def test_an_empty_plan_has_its_columns(plan):
    assert plan(0).rows(0, 0).column_names == ["input"]
    assert plan(0).count_rows() == 0


def test_any_flipped_bit_of_the_inputs_is_rejected(plan, seed):
    written, chance = plan(20), random.Random(seed)
    path = path_of(written, written.rows_name)
    size = path.stat().st_size
    for _ in range(FLIPS):
        position, bit = chance.randrange(size), chance.randrange(8)
        flip(path, position, bit)
        with pytest.raises(LedgerError, match=r"plan\.arrow: is damaged.* Run the job again"):
            written.rows(3, 4)
        flip(path, position, bit)
    assert len(written.rows(0, 20)) == 20


def test_any_flipped_bit_of_the_settings_is_rejected(plan):
    written = plan(20)
    path = path_of(written, written.settings_name)
    for position in range(path.stat().st_size):
        for bit in range(8):
            flip(path, position, bit)
            with pytest.raises(LedgerError, match=r"plan\.json: is damaged.* Run the job again"):
                written.settings()
            flip(path, position, bit)
    assert written.settings()["step"] == "a:b"


def test_a_shard_reads_only_the_parts_of_the_plan_with_its_rows(plan):
    written = plan(3 * ROWS_PER_STREAM)
    path = path_of(written, written.rows_name)
    flip(path, path.stat().st_size // 2, 0)
    assert len(written.rows(0, ROWS_PER_STREAM)) == ROWS_PER_STREAM
    assert len(written.rows(2 * ROWS_PER_STREAM, 3 * ROWS_PER_STREAM)) == ROWS_PER_STREAM
    with pytest.raises(LedgerError, match=re.escape(str(path))):
        written.rows(0, ROWS_PER_STREAM + 1)
    assert written.damaged_file() == written.rows_name


@pytest.mark.parametrize("kept", [0, 100, -1])
def test_a_shortened_plan_is_rejected(plan, kept):
    written = plan(20)
    path = path_of(written, written.rows_name)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(LedgerError, match=r"plan\.arrow: "):
        written.rows(0, 20)
    assert written.damaged_file() == written.rows_name
