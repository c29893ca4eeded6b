"""The rows that a step declares with its return annotation."""

import collections
import dataclasses
import datetime
import enum
import functools
import pickle
import types
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    TypedDict,
)

import numpy as np
import numpy.typing as npt
import pandas as pd
import pydantic
import pytest
from typing_extensions import TypeAliasType

from batchmill import File
from batchmill.core.user_step.declared_rows import DeclaredRows, RowTypeError, declared_rows


class Colour(enum.Enum):
    RED = "red"


class Rgb(enum.Enum):
    RED = (255, 0, 0)


class Row(TypedDict):
    label: str
    peak: float
    count: NotRequired[int | None]


class Named(NamedTuple):
    name: str


@dataclasses.dataclass
class Data:
    vector: npt.NDArray[np.float32]
    words: list[str]
    day: datetime.date
    colour: Colour
    mask: File
    place: Path
    scalar: np.float32
    choice: Literal["a", "b"]
    pair: tuple[int, int]
    other: Any
    free: dict[str, int]
    limited: Annotated[int, pydantic.Field(ge=0)]


class Model(pydantic.BaseModel):
    name: str


class Open(pydantic.BaseModel, extra="allow"):
    name: str = pydantic.Field(alias="Name")
    _cache: int = pydantic.PrivateAttr(default=3)


Embedding = NewType("Embedding", npt.NDArray[np.float32])


Count = TypeAliasType("Count", int)
Tree = TypeAliasType("Tree", "list[Tree] | int")
# Python 3.12 makes such a value of `type Loop = list[Loop]`.
Loop = types.SimpleNamespace()
Loop.__value__ = list[Loop]
Aliased = dataclasses.make_dataclass(
    "Aliased", [("count", Count), ("tree", list[Tree]), ("loop", dict[str, Loop])]
)


class Text(str):
    __slots__ = ()


@dataclasses.dataclass
class Point:
    VERSION: ClassVar[int] = 1
    x: np.float32
    vector: npt.NDArray[np.float32]
    next: "Point | None"
    _: dataclasses.KW_ONLY
    unit: Final[str] = "m"
    scale: dataclasses.InitVar[int] = 1


@dataclasses.dataclass
class Nested:
    point: Point
    points: list[Point]
    levels: Annotated[dict[str, list[np.float32]], {"unit": "dB"}]
    array: Annotated[npt.NDArray[np.float32], pydantic.AfterValidator(np.ndarray.max)]
    level: Annotated[np.float32, pydantic.Field(le=0)]
    length: datetime.timedelta
    at: pd.Timestamp
    text: Text
    hash: np.uint64
    decimal: list[Decimal]
    embedding: Embedding
    number: np.floating[Any]
    shade: Literal[Colour.RED]
    rgb: Rgb
    valid: Annotated[Point, pydantic.AfterValidator(lambda point: point.vector)]


def one(source) -> Row:
    raise NotImplementedError


def maybe(source) -> Row | None:
    raise NotImplementedError


def several(source) -> list[Named]:
    raise NotImplementedError


def generated(source) -> Iterator[Data]:
    raise NotImplementedError


def modelled(source) -> Model:
    raise NotImplementedError


def pair(source) -> tuple[Row, int]:
    raise NotImplementedError


def plain(source) -> dict[str, int]:
    raise NotImplementedError


def unknown(source) -> "Missing":  # type: ignore[name-defined]  # noqa: F821
    raise NotImplementedError


class Items:
    def __len__(self):
        raise NotImplementedError

    def __getitem__(self, index) -> Row:
        raise NotImplementedError


class Called:
    def __call__(self, source) -> Row:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("step", "kind", "row"),
    [
        (one, "function", Row),
        (maybe, "function", Row),
        (several, "function", Named),
        (generated, "function", Data),
        (modelled, "function", Model),
        (functools.partial(one), "function", Row),
        (Called(), "function", Row),
        (Items, "dataset", Row),
        (Items(), "items", Row),
        (pair, "function", None),
        (plain, "function", None),
        (unknown, "function", None),
        (lambda source: {}, "function", None),
    ],
)
def test_the_return_annotation_declares_the_rows(step, kind, row):
    found = declared_rows(step, kind)
    assert (found and found.row) is row


POINT = '{"x":1,"vector":[1],"next":null,"unit":"m"}'
NESTED = (
    f'[{{"point":{POINT.replace("null", POINT)},"points":[{POINT}],"levels":{{"a":[1]}},'
    '"array":[1.5],"level":-1.5,"length":5.0,"at":"2026-01-01T00:00:00","text":"a",'
    '"hash":18446744073709551615,"decimal":[0.5],"embedding":[1.5],"number":2.5,"shade":"red",'
    f'"rgb":[255,0,0],"valid":{POINT}}}]'
)


def test_the_types_of_columns():
    assert DeclaredRows(Point).columns == {
        "x": "float64",
        "vector": "list:float32",
        "unit": "string",
    }
    assert DeclaredRows(Nested).columns == {
        "array": "list:float32",
        "level": "float64",
        "text": "string",
        "hash": "uint64",
        "embedding": "list:float32",
    }
    assert DeclaredRows(Aliased).columns == {"count": "int64"}
    assert DeclaredRows(Row).columns == {"label": "string", "peak": "float64", "count": "int64"}
    assert DeclaredRows(Data).columns == {
        "vector": "list:float32",
        "words": "list:string",
        "mask": "string",
        "place": "string",
        "scalar": "float64",
        "pair": "list:int64",
        "limited": "int64",
    }


DATA = (
    '[{"vector":[1.5],"words":["a"],"day":"2026-01-01","colour":"red","mask":"m.png","place":"p",'
    '"scalar":1,"choice":"a","pair":[1,2],"other":[{}],"free":{"a":1},"limited":0}]'
)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (Row, '[{"label":"a","peak":1}, {"label":"b","peak":NaN,"count":null}]'),
        (Named, '[{"name":"a"}]'),
        (collections.namedtuple("Old", "name"), '[{"name":[1]}]'),
        (Model, '[{"name":"a"}]'),
        (Open, '[{"name":"a","other":1}]'),
        (Point, f"[{POINT}]"),
        (Nested, NESTED),
        (Nested, NESTED.replace("5.0", '"P0DT0H0M5S"')),
        (Data, DATA),
        (Aliased, '[{"count":1,"tree":[[1]],"loop":{"a":[[]]}}]'),
        (Data, DATA.replace("[1.5]", "[1.5,2,null,9223372036854775813]")),
    ],
)
def test_rows_as_declared_are_accepted(row, text):
    DeclaredRows(row).check(text)


@pytest.mark.parametrize(
    ("row", "text", "message"),
    [
        (Row, '[{"label":1,"peak":1}]', "row 0: 'label' is 1; Row declares a valid string."),
        (
            Row,
            '[{"label":"a","peak":1},{"label":"a","peak":"1"}]',
            "row 1: 'peak' is '1'; Row declares a valid number.",
        ),
        (Row, '[{"peak":1}]', "row 0 has no 'label', which Row declares."),
        (Row, '[{"label":"a","peak":1,"x":1}]', "row 0 has the key 'x', which Row does not"),
        (Row, '[{"label":1,"peak":"1"}]', r"\(1 more\)"),
        (Data, DATA.replace("[1,2]", "[1]"), "'pair"),
        (Data, DATA.replace('"red"', '"blue"'), "'colour' is 'blue'"),
        (
            Data,
            DATA.replace("[1.5]", '["n/a"]'),
            r"'vector' is \['n/a'\]; Data declares an array of float32",
        ),
        (
            Data,
            DATA.replace("[1.5]", "[[1],[2,3]]"),
            r"'vector' is .*; Data declares an array of float32",
        ),
        (Data, DATA.replace("[1.5]", "1.5"), "'vector' is 1.5; Data declares a valid array"),
        (Data, DATA.replace('"limited":0', '"limited":-1'), "'limited' is -1"),
        (Data, DATA.replace('"limited":0', '"limited":9223372036854775808'), "declares less than"),
        (Data, DATA.replace("[1,2]", "[1,-9223372036854775809]"), "declares greater than"),
        (Nested, NESTED.replace('"x":1', '"x":"1"'), "'point.x' is '1'"),
        (Nested, NESTED.replace("[1.5]", '["1"]'), "declares an array of float32"),
        (Nested, NESTED.replace("-1.5", "1.5"), "'level' is 1.5"),
    ],
)
def test_other_rows_are_refused(row, text, message):
    with pytest.raises(RowTypeError, match=message):
        DeclaredRows(row).check(text)


def test_an_array_without_a_type_is_no_vector():
    def boxes(source) -> TypedDict("Boxes", {"box": np.ndarray[Any, Any]}):
        raise NotImplementedError

    found = declared_rows(boxes, "function")
    assert found is not None
    assert "box" not in found.columns


def test_a_type_that_only_type_checkers_know_is_not_checked():
    def named(source) -> TypedDict("Named", {"box": "Missing"}):  # noqa: F821
        raise NotImplementedError

    assert declared_rows(named, "function") is None


def test_a_declaration_can_be_sent_to_another_process():
    declared = DeclaredRows(Row)
    declared.check("[]")
    assert pickle.loads(pickle.dumps(declared)).columns == declared.columns
