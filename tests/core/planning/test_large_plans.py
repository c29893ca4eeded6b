"""The memory of a plan does not grow with the columns of its tables."""

import pyarrow as pa
import pytest
from harness.small_tables import small_tables

from batchmill.core.ledger.state import State
from batchmill.core.manifest import Manifest
from batchmill.core.planning.changed_files import detect_changes
from batchmill.core.planning.decisions import Criteria
from batchmill.core.planning.plan import PLANNED_COLUMNS, make_plan, match_records
from batchmill.core.storage.large_tables import collected

ROWS = 20_000
RECORDS = State(None).records(PLANNED_COLUMNS).schema
NAME = "a-folder-with-a-long-name/and-another-one/{}.wav"


@pytest.fixture
def pool():
    """A pool of Arrow's memory that measures the peak of the test."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    yield pool
    pa.set_memory_pool(before)


def tables_of(count, state):
    """A table of inputs and one of their records, both in files."""
    for start in range(0, count, 1000):
        names = [NAME.format(number) for number in range(start, min(count, start + 1000))]
        same = {"input": names, "outcome": "ok", "step": "s", "run": 1}
        columns = {
            field.name: same.get(field.name, 1 if pa.types.is_integer(field.type) else None)
            for field in state
        }
        yield pa.table(
            [
                pa.array(column if isinstance(column, list) else [column] * len(names), field.type)
                for column, field in zip(columns.values(), state, strict=True)
            ],
            schema=state,
        )


def plan_of(count, states):
    inputs, records = (collected(tables_of(count, state), state) for state in states)
    columns = pa.table({"label": pa.nulls(count, pa.string())})
    manifest = Manifest(name="m", root="/", inputs=inputs, manifest_columns=columns)
    return make_plan(manifest, match_records(records, inputs), Criteria("s"))


def test_a_plan_keeps_few_bytes_of_each_input_in_memory(pool):
    names = ["input", "size", "mtime_ns", "etag", "ctime_ns", "companions"]
    states = [State(None).records(columns).schema for columns in (names, PLANNED_COLUMNS)]
    with small_tables(rows=500):
        peaks = []
        for count in (ROWS, 3 * ROWS):
            assert plan_of(count, states).counts["unchanged"] == count
            peaks.append(pool.max_memory())
    # Row numbers, masks and short texts. An input has about 300 bytes in both tables.
    assert peaks[1] - peaks[0] < 80 * 2 * ROWS


class CountingStore:
    """A store in which all files have one byte. It counts the questions."""

    def __init__(self):
        self.asked = []

    def sizes(self, names):
        self.asked.append(len(names))
        return [1 for _ in names]


def test_all_outputs_are_looked_up_in_one_call():
    """In a bucket, each call may list the whole dataset."""
    output = {"path": "files/x", "size": 1, "content": "", "pack": None}
    more = {"outcome": "ok", "outputs": [output], "step": "s"}
    names = [f"{number}.wav" for number in range(10)]
    done = pa.Table.from_pylist([{"input": name, **more} for name in names], RECORDS)
    inputs = done.select(["input", "size", "mtime_ns", "etag", "ctime_ns", "companions"])
    manifest = Manifest(name="m", root="/", inputs=inputs, manifest_columns=pa.table({}))
    store = CountingStore()
    with small_tables():
        assert detect_changes(manifest, done, {"s"}, store).damaged == frozenset()
    assert store.asked == [10]
