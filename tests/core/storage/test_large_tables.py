"""Tables above a size are mapped from files, and have the same rows."""

import numpy as np
import pyarrow as pa
import pytest

from batchmill.core.storage import large_tables
from batchmill.core.storage.large_tables import collected, select, slices, take
from batchmill.errors import StoreError

ROWS = 1000
TABLE = pa.table(
    {"name": [f"n{number}" for number in range(ROWS)], "size": [*range(ROWS - 1), None]}
)


@pytest.fixture(params=["small", "large"])
def sizes(request, monkeypatch):
    """Tables of ten rows are copied at a time, and large tables are mapped."""
    monkeypatch.setattr(large_tables, "SLICE_ROWS", 10)
    if request.param == "large":
        monkeypatch.setattr(large_tables, "MAPPED_BYTES", 500)


@pytest.mark.usefixtures("sizes")
def test_a_collected_table_has_all_rows_in_their_order():
    assert collected(slices(TABLE), TABLE.schema).equals(TABLE)
    assert collected([], TABLE.schema).equals(TABLE.schema.empty_table())
    assert collected([TABLE.slice(3, 5)], TABLE.schema).equals(TABLE.slice(3, 5))


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("share", [0, 0.3, 1])
def test_rows_are_selected_as_by_arrow(share):
    mask = np.random.default_rng(3).random(ROWS) < share
    assert select(TABLE, mask).equals(TABLE.filter(pa.array(mask)))
    assert select(TABLE, pa.chunked_array([mask[:7], mask[7:]])).equals(
        TABLE.filter(pa.array(mask))
    )


@pytest.mark.usefixtures("sizes")
def test_rows_are_taken_as_by_arrow():
    rows = pa.array([*np.random.default_rng(3).integers(0, ROWS, 2 * ROWS), None])
    chunked = pa.concat_tables([TABLE.slice(0, 7), TABLE.slice(7, 0), TABLE.slice(7)])
    for table in (TABLE, chunked):
        assert take(table, rows).equals(TABLE.take(rows))
    nothing = pa.nulls(3, pa.int64())
    for table in (TABLE, TABLE.slice(0, 0), TABLE.schema.empty_table()):
        assert take(table, nothing).to_pylist() == [{"name": None, "size": None}] * 3
    assert take(TABLE, rows.slice(0, 0)).equals(TABLE.slice(0, 0))
    assert take(pa.table({}), rows).num_columns == 0


def test_more_text_than_an_array_holds_is_taken():
    """The chunks share their memory. Joined, they would have more than 2 GiB."""
    chunk = pa.array(["x" * 10_000] * 1000)
    column = pa.chunked_array([chunk] * 220)
    assert take(pa.table([column], ["a"]), pa.array([0, 219_999, 5]))["a"].to_pylist() == (
        ["x" * 10_000] * 3
    )


@pytest.mark.usefixtures("sizes")
def test_a_large_table_takes_no_memory_and_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(large_tables.tempfile, "tempdir", None)
    before = pa.total_allocated_bytes()
    found = collected(slices(TABLE), TABLE.schema)
    is_mapped = large_tables.MAPPED_BYTES == 500
    assert not is_mapped or pa.total_allocated_bytes() - before < 1000
    assert found.equals(TABLE)
    assert list(tmp_path.iterdir()) == []


def test_a_full_temporary_folder_is_named(monkeypatch):
    monkeypatch.setattr(large_tables, "MAPPED_BYTES", 500)
    monkeypatch.setenv("TMPDIR", "/nowhere")
    monkeypatch.setattr(large_tables.tempfile, "tempdir", "/nowhere")
    with pytest.raises(StoreError, match=r"/nowhere: No such file.* Set TMPDIR"):
        collected([TABLE], TABLE.schema)


def test_take_joins_few_wide_rows_at_a_time(monkeypatch):
    monkeypatch.setattr(large_tables, "JOINED_BYTES", 10_000)
    wide = pa.table({"text": [f"{number:1000}" for number in range(100)]})
    rows = pa.array([*range(99, -1, -1)])
    found = take(wide, rows)
    assert found["text"].to_pylist() == wide["text"].to_pylist()[::-1]
    assert max(len(chunk) for chunk in found["text"].chunks) <= 11
