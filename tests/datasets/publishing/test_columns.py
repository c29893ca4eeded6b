"""Test that the columns of a table are described correctly, with any values."""

import math
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchmill.core.storage import LocalStore
from batchmill.datasets.publishing.report.columns import SHOWN_COLUMNS, describe_columns


@pytest.fixture
def describe(tmp_path):
    """Return a function that writes a table with some columns, and describes it."""

    def describe(**columns):
        pq.write_table(pa.table(columns), tmp_path / "metadata.parquet", row_group_size=5000)
        return describe_columns(LocalStore(tmp_path))

    return describe


def the(columns):
    (column,) = columns.shown
    return column


def test_whole_numbers_have_a_range_and_a_bar_for_each(describe):
    column = the(describe(a=[1, 2, 2, 5, None]))
    assert column[:4] == ("a", "whole number", "1 to 5", 1)
    assert column.bars == [0.5, 1, 0, 0, 0.5]


def test_numbers_have_a_histogram_of_all_row_groups(describe):
    column = the(describe(a=[number / 1000 for number in range(24_000)]))
    assert (column.kind, column.values, column.missing) == ("number", "0 to 24", 0)
    assert column.bars == pytest.approx([1] * 24, abs=0.01)


def test_nan_and_infinity_are_missing(describe):
    column = the(describe(a=[1.5, math.nan, math.inf, -math.inf, None, 2.5]))
    assert (column.values, column.missing) == ("1.5 to 2.5", 4)


@pytest.mark.parametrize(
    "values",
    [
        [1.0],
        [-1.7e308, 1.7e308],
        [1e16, 1e16 + 2],
        [5e-324, 1e-323],
        [-(2**63), 2**63 - 1],
        [2**53, 2**53 + 1],
        [0],
    ],
)
def test_extreme_numbers_are_described(describe, values):
    assert the(describe(a=values)).values


def test_frequent_texts_are_counted_over_all_parts(describe):
    column = the(describe(a=["rare", *["<cat>"] * 9000, *["dog"] * 12_000, None]))
    assert column[:4] == ("a", "text", "3 different", 1)
    assert column.frequent == [("dog", 12_000), ("<cat>", 9000), ("rare", 1)]


def test_different_texts_are_not_listed(describe):
    column = the(describe(a=[f"name {number}" for number in range(100)]))
    assert (column.values, column.frequent) == ("100 different, each once", [])


def test_many_different_texts_are_counted_up_to_a_limit(describe):
    names = [f"name {number}" for number in range(30_000)]
    column = the(describe(a=[*names, None]))
    assert (column.values, column.missing) == ("at least 10,000 different", 1)
    assert column.frequent == ()


@pytest.mark.parametrize(
    ("values", "kind", "text"),
    [
        ([True, False, True], "true or false", "2 different"),
        ([date(2026, 1, 1)], "date32[day]", "one value"),
        (pa.array(["a", "a"]).dictionary_encode(), "dictionary<", "one value"),
        ([[1, 2]], "list<", ""),
        ([None, None], "null", ""),
        (pa.array([None], pa.float64()), "number", ""),
        (pa.array([], pa.string()), "text", ""),
        (np.array([1.5, 1.5], np.float16), "number", "1.5"),
        (pa.array([0], pa.timestamp("ms", tz="Mars/Olympus")), "timestamp", ""),
    ],
)
def test_other_types_are_described(describe, values, kind, text):
    column = the(describe(a=values))
    assert column.kind.startswith(kind)
    assert column.values == text


def test_columns_with_dots_in_their_names_are_separate(describe):
    columns = describe(**{"a": [1], "a.b": ["text"]})
    assert [(column.name, column.kind) for column in columns.shown] == [
        ("a", "whole number"),
        ("a.b", "text"),
    ]


def test_only_the_first_columns_are_shown(describe):
    columns = describe(**{f"column {number}": [number] for number in range(SHOWN_COLUMNS + 7)})
    assert (len(columns.shown), columns.others) == (SHOWN_COLUMNS, 7)


def test_nothing_is_described_without_a_readable_table(tmp_path):
    assert describe_columns(LocalStore(tmp_path)).shown == []
    (tmp_path / "metadata.parquet").write_bytes(b"damaged")
    assert describe_columns(LocalStore(tmp_path)).shown == []
