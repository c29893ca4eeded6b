"""Test which edits of cells and values change a step that other processes cannot import."""

import functools
import json
import logging
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from harness.cells import Notebook
from harness.live import SUPPORT

from batchmill import StepError
from batchmill.core.user_step.value.value_digests import value_code


def code_of(text, name="step", **options):
    return value_code("cell", Notebook().cell(text, **options)[name])


def digests(code):
    return {key: found.digest for key, found in code.definitions.items()}


SAME = {
    "a comment": ("def step(s): return s", "# A remark.\n\n\ndef step(s): return s  # !"),
    "an unused name": ("X = 1\ndef step(s): return s", "X = 2\ndef step(s): return s"),
    "the order of cells": ("X = 1\ndef step(s): return X", "def step(s): return X\nX = 1"),
    "equal values": ("X = (1, 2)\ndef step(s): return X", "X = (0 + 1, 2)\ndef step(s): return X"),
    "a set's order": (
        "X = {'a', 'b', 'c'}\ndef step(s): return X",
        "X = {'c', 'b', 'a'}\ndef step(s): return X",
    ),
    "other lambdas of the line": (
        "step, other = lambda s: s + 1, lambda s: s + 2",
        "step, other = lambda s: s + 1, lambda s: s + 3",
    ),
    "a function that is defined again": (
        "def step(s): return 1",
        "def step(s): return 2\ndef step(s): return 1",
    ),
}

CHANGED = {
    "a statement": ("def step(s): return s + VAR", "step"),
    "a global": ("X = VAR\ndef step(s): return X", "step > X"),
    "a global of a helper": (
        "X = VAR\ndef helper(): return X\ndef step(s): return helper()",
        "step > helper > X",
    ),
    "a helper": ("def helper(): return VAR\ndef step(s): return helper()", "step > helper"),
    "a default": ("X = VAR\ndef step(s, x=X): return x", "step"),
    "a default that is only for keywords": ("X = VAR\ndef step(s, *, x=X): return x", "step"),
    "a closure": (
        "def make(n):\n  def step(s): return n\n  return step\nstep = make(VAR)",
        "step > n",
    ),
    "a lambda": ("step = lambda s: s + VAR", "<lambda>"),
    "one of two lambdas": (
        "step, other = lambda s: s + VAR, lambda s: s + 2",
        "<lambda>",
        "1",
        "3",
    ),
    "an inner function": ("def step(s):\n  def f(): return VAR\n  return f()", "step"),
    "a global of an inner function": (
        "X = VAR\ndef step(s):\n  def f(): return X\n  return f()",
        "step > X",
    ),
    "the extent of a try": (
        "def f(): ...\ndef step(s):\n  try:\n    f()VAR\n    f()",
        "step",
        "\n    f()\n  except OSError:",
        "\n  except OSError:\n    f()",
    ),
    "a partial": (
        "import functools\ndef f(s, n): return n\nstep = functools.partial(f, n=VAR)",
        "partial",
    ),
    "a bound method's object": (
        "class A:\n  def __init__(self, n): self.n = n\n  def f(self): ...\nstep = A(VAR).f",
        "f",
    ),
    "a method": ("class A:\n  def f(self, s): return VAR\nstep = A().f", "f > f"),
    "a base class": ("class A:\n  x = VAR\nclass step(A): ...", "step > A"),
    "a class attribute": ("class step:\n  x = VAR", "step"),
    "a method of a class": ("class step:\n  def f(self): return VAR", "step > f"),
    "a property": ("class step:\n  @property\n  def f(self): return VAR", "step > f"),
    "the default of a dataclass": (
        "from dataclasses import dataclass\n@dataclass\nclass step:\n  x: int = VAR",
        "step",
    ),
    "the member of an enum": ("from enum import Enum\nclass step(Enum):\n  A = VAR", "step"),
    "the default of a NamedTuple": (
        "from typing import NamedTuple\nclass step(NamedTuple):\n  x: int = VAR",
        "step",
    ),
    "a property of an enum": (
        "from enum import Enum\nclass step(Enum):\n  A = 3\n  @property\n  def f(self): return VAR",
        "step > f",
    ),
    "a special method of an enum": (
        "from enum import Enum\nclass step(Enum):\n  A = 3\n  def __str__(self): return 'VAR'",
        "step > __str__",
    ),
    "the second name of an enum's member": (
        "from enum import Enum\nclass step(Enum):\n  A = 1\n  B = 2\n  C = VAR",
        "step",
    ),
    "the order of a dataclass": (
        "from dataclasses import dataclass\n@dataclass(order=VAR)\nclass step:\n  x: int = 1",
        "step",
        "False",
        "True",
    ),
    "the metadata of a field": (
        (
            "from dataclasses import dataclass, field as f\n@dataclass\n"
            "class step:\n  x: int = f(default=1, metadata={'scale': VAR})"
        ),
        "step",
    ),
    "a method of a NamedTuple": (
        (
            "from typing import NamedTuple\n"
            "class step(NamedTuple):\n  x: int\n  def __repr__(self): return 'VAR'"
        ),
        "step > __repr__",
    ),
    "the constructor of a class from a namedtuple": (
        (
            "from collections import namedtuple\n"
            "class step(namedtuple('B', 'x')):\n"
            "  def __new__(cls, x): return super().__new__(cls, x + VAR)"
        ),
        "step > __new__",
    ),
    "the validator of a pydantic model": (
        (
            "import pydantic as p\n"
            "class step(p.BaseModel):\n  x: int = 1\n"
            "  @p.field_validator('x', mode='VAR')\n  def check(cls, x): return x"
        ),
        "step",
        "before",
        "after",
    ),
    "the shape of an empty array": (
        "import numpy as np\nX = np.zeros((0, VAR))\ndef step(s): return X",
        "step > X",
    ),
    "a wrapped function": (
        "import functools as t\ndef d(f): return t.wraps(f)(lambda: f)\n@d\ndef step(): return VAR",
        "step > f",
    ),
    "a cached function": (
        "from functools import cache\n@cache\ndef helper(): return VAR\ndef step(s): helper()",
        "step > helper > helper",
    ),
    "an attribute of the step": ("def step(s): ...\nstep.limit = VAR", "step"),
    "an array": ("import numpy as np\nX = np.full(9, VAR)\ndef step(s): return X", "step > X"),
    "an item of a nested value": ("X = {'a': [(1, VAR)]}\ndef step(s): return X", "step > X"),
    "a pattern": ("import re\nX = re.compile('VAR')\ndef step(s): return X", "step > X"),
    "a library's function": (
        "from math import VAR as f\ndef step(s): return f(s)",
        "step > f",
        "floor",
        "ceil",
    ),
    "the type of a value": ("X = VAR\ndef step(s): return X", "step > X", "1", "1.0"),
}


@pytest.mark.parametrize("with_source", [True, False])
@pytest.mark.parametrize(("before", "after"), SAME.values(), ids=SAME)
def test_the_step_stays_the_same_after_a_change_of(before, after, with_source):
    first, second = (code_of(text, with_source=with_source) for text in (before, after))
    assert digests(first) == digests(second)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def step(s): return s", "def step(s):\n  'Text.'\n  return s"),
        (
            "class step:\n  def f(self): return 1",
            "class step:\n  'A.'\n  def f(self):\n    'B.'\n    return 1",
        ),
    ],
)
def test_docstrings_do_not_count_if_the_source_is_known(before, after):
    assert digests(code_of(before)) == digests(code_of(after))


def test_a_pydantic_model_stays_the_same_in_another_process_and_after_its_use():
    text = (
        "import pydantic as p\nclass M(p.BaseModel):\n  x: int = 1\n"
        "  @p.field_validator('x')\n  def check(cls, x): return x\ndef step(s): return M(x=s)"
    )
    # Another class with the same code has other addresses.
    used, same = Notebook().cell(text), Notebook().cell(text)
    used["M"]().x = 4
    assert digests(value_code("cell", used["step"])) == digests(value_code("cell", same["step"]))


@pytest.mark.parametrize(
    ("made", "use"),
    [
        ("pd.Series([1, VAR], pd.date_range('2026', periods=2, tz='UTC'))", "X.loc['2026-01-01']"),
        ("pd.DataFrame({'t': pd.to_datetime(['202VAR-01-01']), 'x': 1})", "X.loc[0]"),
        ("pd.Series([1], pd.period_range('202VAR', periods=1, freq='M'))", "X.loc['2021-01']"),
        ("Plain(VAR)", "X.total"),
        ("Model(x=VAR)", "X.total"),
    ],
)
def test_the_use_of_a_value_that_keeps_results_changes_nothing(made, use):
    text = (
        "import functools, pandas as pd, pydantic\n"
        "class Total:\n  @functools.cached_property\n  def total(self): return self.x + 1\n"
        "class Plain(Total):\n  def __init__(self, x): self.x = x\n"
        "class Model(Total, pydantic.BaseModel):\n  x: int\n"
        f"X = {made}\ndef step(s): return X"
    )
    unused, other = (digests(code_of(text.replace("VAR", value))) for value in "12")
    used = digests(code_of(f"{text}\n{use}".replace("VAR", "1")))
    assert unused == used != other


@pytest.mark.parametrize("with_source", [True, False])
@pytest.mark.parametrize("case", CHANGED.values(), ids=CHANGED)
def test_the_step_changes_with(case, with_source):
    text, path, first, second = (*case, "1", "2")[:4]
    old, new = (
        digests(code_of(text.replace("VAR", value), with_source=with_source))
        for value in (first, second)
    )
    assert old.keys() == new.keys()
    assert f":{path}" in {key for key in old if old[key] != new[key]}


def test_a_value_without_a_digest_is_refused_with_its_path(tmp_path):
    def helper():
        return settings

    def step(source):
        return helper()

    with open(tmp_path / "file", "w") as file:
        settings = {"log": [file]}
        with pytest.raises(StepError) as error:
            value_code("cell:step", step)
    assert str(error.value) == (
        "step cell:step: step > helper > settings is or contains a TextIOWrapper, which cannot be "
        "compared between runs. Create it inside the function, give the step its path as a "
        "parameter, or give its class a method __fingerprint__() that returns a text."
    )


def test_a_class_may_give_its_own_text():
    class Pool:
        def __init__(self, name):
            self.name, self.lock = name, threading.Lock()

        def __fingerprint__(self):
            return self.name

    def found(pool):
        return digests(value_code("cell", lambda source: pool))

    assert found(Pool("a")) == found(Pool("a")) != found(Pool("b"))


def test_values_of_many_types_have_digests():
    values = (
        logging.getLogger("a.b"), re.compile("a"), Path("a"), np.arange(3), np.float32(1), len,
        range(3), slice(1, 2), frozenset("ab"), bytearray(b"a"), functools.partial(int, base=2),
        [].append, dict[str, int], int | None, {"a": ...},
    )  # fmt: skip
    first, second = (value_code("cell", lambda source: values) for _ in range(2))
    assert first.definitions.keys() == {":<lambda>", ":<lambda> > values"}
    assert digests(first) == digests(second)


def test_values_that_contain_themselves_have_digests():
    def made(last):
        items = [1]
        items.append([items, last])
        return digests(value_code("cell", lambda source: items))

    def step(source, again=True):
        return other(source) if again else source

    def other(source):
        return step(source, again=False)

    assert made(2) == made(2) != made(3)
    assert value_code("cell", step).definitions.keys() == {":step", ":step > other"}


def test_modules_of_the_user_count_as_far_as_the_step_uses_them(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "beside_one.py").write_text("def f(): ...\nclass A: ...\nB = 1\n")
    found = code_of(
        "import beside_one, json\nfrom beside_one import A\n"
        "def step(s): return beside_one.f(), A, json.dumps(s)"
    )
    assert found.imports == {("beside_one", ("A",)): ("step",), ("beside_one", ("f",)): ("step",)}


STORE = """
import json
from harness.cells import Notebook
from batchmill.core.user_step.value.value_digests import value_code
text = '''
import re
WORDS = {"one", "two", "three", "four"}
class Base:
    pattern = re.compile("a")
class Cut(Base):
    def __call__(self, source): return helper(WORDS), super().x
def helper(x): return x
step = Cut()
'''
print(json.dumps(value_code("cell", Notebook().cell(text)["step"]).definitions))
"""


@pytest.mark.slow
def test_the_same_cells_have_the_same_digests_in_each_process():
    found = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", STORE],
                env={"PYTHONPATH": str(SUPPORT), "PYTHONHASHSEED": seed},
                capture_output=True,
                check=True,
            ).stdout
        )
        for seed in "12"
    ]
    assert found[0] == found[1]
    assert len(found[0]) == 6


def test_tensors_are_compared_by_type_shape_and_values():
    def found(tensor):
        return digests(value_code("cell", [tensor]))

    equal = [torch.arange(4.0), torch.arange(8.0)[::2] / 2]
    assert found(equal[0]) == found(equal[1])
    for other in (
        torch.arange(4),
        torch.arange(4.0).reshape(2, 2),
        torch.arange(1.0, 5.0),
        torch.arange(4.0, requires_grad=True),
        torch.tensor(0.0),
    ):
        assert found(other) != found(equal[0])
    assert found(torch.zeros(2, dtype=torch.bfloat16)) == found(
        torch.zeros(2, dtype=torch.bfloat16)
    )


def test_modules_that_a_function_imports_itself_count(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "beside_two.py").write_text("def f(): ...\n")
    (tmp_path / "plain").mkdir()  # A package without __init__.py.
    (tmp_path / "plain" / "inner.py").write_text("def f(): ...\n")
    found = code_of(
        "import plain.inner\ndef step(s):\n"
        "  import json, beside_two\n  from beside_two import f\n  return plain.inner.f()"
    )
    assert found.imports.keys() == {
        ("beside_two", ()),
        ("beside_two", ("f",)),
        ("plain.inner", ("f",)),
    }


def test_annotations_of_helpers_do_not_count():
    code_of(
        "import threading\nclass Pool:\n  lock = threading.Lock()\n"
        "def helper(s, pool: Pool = None): return s\ndef step(s): return helper(s)"
    )


@pytest.mark.parametrize(
    "use",
    [
        "def step(s, row: A): ...",
        "def step(s, row: 'list[A] | None'): ...",
        "def step(s) -> A: ...",
        "class step:\n  def __init__(self, mode: A): ...\n  def __call__(self, s): ...",
        "class step:\n  def __call__(self, s) -> A: ...",
        "class step:\n  def __getitem__(self, i) -> A: ...",
    ],
)
def test_classes_of_annotations_count(use):
    text = f"class A:\n  def f(self): return NUMBER\n{use}"
    one, two = (digests(code_of(text.replace("NUMBER", number))) for number in "12")
    assert one.keys() == two.keys()
    assert one != two
