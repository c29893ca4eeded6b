"""Results of steps are converted to rows, and values that no table can hold are rejected."""

import datetime
import enum
import json
import os
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pandas as pd
import pydantic
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from steps_under_test import Clip, Colour, Page

from batchmill.runs.inputs import result_rows
from batchmill.runs.inputs.result_rows import encode_rows, rows_of


class Box(pydantic.BaseModel):
    at: Any
    size: int = 2

    def __iter__(self):
        return iter("ab")


def yields(*items):
    yield from items


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (None, []),
        ({"a": 1}, [{"a": 1}]),
        ([{"a": 1}, {"a": 2}], [{"a": 1}, {"a": 2}]),
        ([], []),
        (Clip(0.0, 1.5), [{"start": 0.0, "end": 1.5}]),
        (Box(at=Clip(0, 1)), [{"at": {"start": 0, "end": 1}, "size": 2}]),
        ([Box(at=None)], [{"at": None, "size": 2}]),
        ([Clip(0, 1), Page(1, "x")], [{"start": 0, "end": 1}, {"number": 1, "text": "x"}]),
        (["sim", "imp"], [{"value": ["sim", "imp"]}]),
        (("sim", 3), [{"value": ["sim", 3]}]),
        (7, [{"value": 7}]),
        (yields({"a": 1}, 2, None, Clip(0, 1)), [{"a": 1}, {"value": 2}, {"start": 0, "end": 1}]),
        ({"n": np.int64(3), "x": np.float32(0.5)}, [{"n": 3, "x": 0.5}]),
        ({"t": torch.tensor([[1, 2]]), "s": torch.tensor(2.0)}, [{"t": [[1, 2]], "s": 2.0}]),
        ({"c": Colour.RED, "p": Path("a/b")}, [{"c": "red", "p": "a/b"}]),
        ({"d": datetime.date(2026, 1, 2)}, [{"d": "2026-01-02"}]),
        (
            {"page": Page(2, "y"), "set": {2, 1}},
            [{"page": {"number": 2, "text": "y"}, "set": [1, 2]}],
        ),
        ({1: True}, [{"1": True}]),
        ({"lone": "a\ud800"}, [{"lone": "a?"}]),
        (enum.IntEnum("Level", ["LOW"])["LOW"], [{"value": 1}]),
        (enum.Enum("Size", {"S": "small"}, type=str)["S"], [{"value": "small"}]),
        (np.str_("text"), [{"value": "text"}]),
        ({"d": np.datetime64("2026-01-02", "D")}, [{"d": "2026-01-02"}]),
        ({"t": np.datetime64("2026-01-02T03:04:05", "ns")}, [{"t": "2026-01-02T03:04:05"}]),
        (
            {"t": np.array(["2026-01-02T03:04:05.000000006", "NaT"], "datetime64[ns]")},
            [{"t": ["2026-01-02T03:04:05.000000006", None]}],
        ),
        ({"t": np.array("2026-01-02T03", "datetime64[ns]")}, [{"t": "2026-01-02T03:00:00"}]),
        ({"t": np.datetime64("20260-01-02", "us")}, [{"t": "20260-01-02T00:00:00.000000"}]),
        ({"s": np.timedelta64(1_500_000_000, "ns")}, [{"s": 1.5}]),
        ({"s": np.array([1500, "NaT"], "timedelta64[ms]")}, [{"s": [1.5, None]}]),
        ({"s": datetime.timedelta(seconds=1.5)}, [{"s": 1.5}]),
        ({"x": np.longdouble("0.5")}, [{"x": 0.5}]),
        ({"x": Fraction(1, 4), "y": Decimal("0.5")}, [{"x": 0.25, "y": 0.5}]),
        (
            {"exif": {"Make": b"Canon\0\0", "Of": b"\xc3\xa9 b\n"}},
            [{"exif": {"Make": "Canon", "Of": "é b\n"}}],
        ),
        ({"x": np.array([[0.5]], np.longdouble)}, [{"x": [[0.5]]}]),
    ],
)
def test_results_become_rows(result, expected):
    assert json.loads(encode_rows(rows_of(result))) == expected


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
@example(float("nan"))
@example(2**64)
@example("null and \u2028")
def test_values_survive_encoding(value):
    # Compared by `repr`, because NaN is not equal to itself, and 1.0 is equal to 1.
    assert repr(json.loads(encode_rows([{"value": value}]))) == repr([{"value": value}])


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (object(), "object"),
        (1j, "complex"),
        (np.clongdouble(1j), "clongdouble"),
        (np.timedelta64(1, "M"), "timedelta64"),
        (b"\xff\xfe", "bytes"),
        (b"a\x00b", "bytes"),
        (b"a" * 1001, "bytes"),
        # Its columns are attributes, as the name and value of an Enum are.
        (pd.DataFrame({"name": ["a"], "value": [1]}), "DataFrame"),
    ],
)
def test_a_value_that_no_table_can_hold_is_rejected_with_its_key(value, kind):
    with pytest.raises(TypeError, match=f"the value of 'lock' has the type {kind}"):
        encode_rows(rows_of({"lock": value}))
    with pytest.raises(TypeError, match=f"the value of 'a.b.lock' has the type {kind}"):
        encode_rows(rows_of({"a": {"b": [{"lock": value}]}}))


def test_a_reserved_key_is_rejected():
    with pytest.raises(ValueError, match="the key 'input'"):
        rows_of({"input": "x"})


def test_the_size_of_the_metadata_of_one_input_is_limited(monkeypatch):
    monkeypatch.setattr(result_rows, "MAX_ROWS_BYTES", 1000)
    assert encode_rows([{"a": "x" * 900}])
    with pytest.raises(ValueError, match="metadata takes"):
        encode_rows([{"a": "x" * 1000}])


@pytest.mark.parametrize(
    "row",
    [{1: "a", "1": "b"}, dict.fromkeys(map(chr, (0xD800, 0xD801))), {"a": {True: 1, "True": 2}}],
)
def test_two_keys_with_the_same_text_are_rejected(row):
    with pytest.raises(ValueError, match="two keys of a row have the same text"):
        encode_rows(rows_of(row))


def test_a_key_becomes_text_before_it_is_checked():
    assert rows_of({PurePosixPath("output"): "a.txt"}) == [{"output": "a.txt"}]
    with pytest.raises(ValueError, match="the key 'input'"):
        rows_of({PurePosixPath("input"): "x"})


def test_the_number_of_keys_and_levels_is_limited():
    assert encode_rows(rows_of({str(number): 0 for number in range(result_rows.MAX_KEYS)}))
    with pytest.raises(ValueError, match="a row has 1,001 keys"):
        rows_of({str(number): 0 for number in range(result_rows.MAX_KEYS + 1)})
    deep = []
    for _ in range(result_rows.MAX_LEVELS - 1):
        deep = [deep]
    assert encode_rows(rows_of({"a": deep}))
    endless = {}
    endless["self"] = endless
    for value in ([deep], endless):
        with pytest.raises(ValueError, match=r"the value of 'a.* has more than 64 levels"):
            encode_rows(rows_of({"a": value}))


def test_a_generator_may_use_its_list_and_array_again():
    def reuses():
        numbers, seen = np.zeros(2, int), []
        for number in range(3):
            numbers[:] = number
            seen.append(number)
            yield {"numbers": numbers, "seen": seen}

    assert json.loads(encode_rows(rows_of(reuses()))) == [
        {"numbers": [0, 0], "seen": [0]},
        {"numbers": [1, 1], "seen": [0, 1]},
        {"numbers": [2, 2], "seen": [0, 1, 2]},
    ]


def test_an_entry_of_a_folder_is_its_path(tmp_path):
    (tmp_path / "a.wav").touch()
    for form in (iter, list):
        result = form([{"output": entry} for entry in os.scandir(tmp_path)])
        assert json.loads(encode_rows(rows_of(result))) == [{"output": f"{tmp_path}/a.wav"}]
