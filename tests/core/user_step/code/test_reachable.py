"""Test which edits of a step's modules change its code, and which do not."""

import importlib

import pytest

from batchmill.core.user_step.code import files
from batchmill.core.user_step.code.module import Value
from batchmill.core.user_step.code.reachable import digests_in, reachable_code

STEP = "def step(source):\n    return source\n"
HELPER = "LIMIT = 3\ndef helper(x):\n    return x < LIMIT\n"
USES_HELPER = "from own_helper import helper\ndef step(source):\n    return helper(source)\n"


@pytest.fixture
def code(tmp_path, monkeypatch):
    """Return the code of own_step:step in some modules, by name."""
    monkeypatch.syspath_prepend(tmp_path)

    def code(step, root="step", **modules):
        for name, text in {"own_step": step, **modules}.items():
            path = tmp_path / f"{name.replace('__', '/', 1)}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        importlib.invalidate_caches()
        return reachable_code([Value("own_step", (root,))]).definitions

    return code


def digests(code):
    return {key: found.digest for key, found in code.items()}


SAME = {
    "a comment": (STEP, STEP + "# A remark.\n"),
    "a docstring": (STEP, STEP.replace("    return", "    '''Text.'''\n    return")),
    "a changed docstring": (
        "class A:\n    'one'\n    def f(self):\n        'two'\nstep = A",
        "class A:\n    'three'\n    def f(self):\n        'four'\nstep = A",
    ),
    "the module's docstring": (STEP, "'''Text.'''\n" + STEP),
    "the layout": (
        "def step(source, n=1): return {'a': [source, n]}",
        'def step(\n    source,\n    n=1,\n):\n    return {\n"a": [\nsource, n,],\n    }\n',
    ),
    "the order of definitions": (
        "A = 1\nB = 2\ndef step(): A, B",
        "def step(): A, B\nB = 2\nA = 1",
    ),
    "an unused function": (STEP + "def other(): return 1", STEP + "def other(): return 2"),
    "an unused constant": (STEP + "OTHER = 1", STEP + "OTHER = 2"),
    "an unused pattern": (
        "import re\n" + STEP + "OTHER = re.compile('a')",
        "import re\n" + STEP + "OTHER = re.compile('b')",
    ),
    "an unused class": (
        "from dataclasses import dataclass\n" + STEP + "@dataclass\nclass Other:\n    x: int = 1",
        "from dataclasses import dataclass\n" + STEP + "@dataclass\nclass Other:\n    x: int = 2",
    ),
    "a subclass of a library's class": (
        "from torch.utils.data import Dataset\n" + STEP + "class Other(Dataset):\n    x = 1",
        "from torch.utils.data import Dataset\n" + STEP + "class Other(Dataset):\n    x = 2",
    ),
    "an unused import of a library": ("import math\n" + STEP + "def other(): math", STEP),
    "code under the main guard": (
        STEP + "if __name__ == '__main__':\n    print(1)",
        STEP + "if __name__ == '__main__':\n    print(2)",
    ),
    "imports for type checkers": (
        "from typing import TYPE_CHECKING\n" + STEP + "if TYPE_CHECKING:\n    import json",
        "from typing import TYPE_CHECKING\n" + STEP + "if TYPE_CHECKING:\n    import math",
    ),
    "the parts of an f-string": (
        "def step(): return f'a{1}b' 'c'",
        "def step(): return f'a{1}' f'bc'",
    ),
}

# A step before and after an edit replaces VAR by 1 or 2, or by the given texts. The path of a
# definition that changes.
CHANGED = {
    "a statement": ("def step(source): return source + VAR", "step"),
    "a constant": ("A = VAR\ndef step(): A", "step > A"),
    "the type of a constant": ("A = VAR\ndef step(): A", "step > A", "1", "True"),
    "a default": ("def step(source, n=VAR): ...", "step"),
    "the default of a helper": ("def f(n=VAR): ...\ndef step(): f()", "step > f"),
    "an annotation": ("def step(source, n: VAR): ...", "step", "int", "float"),
    "an annotation as text": ("class A: x = VAR\ndef step(n: 'list[A]'): ...", "step > A"),
    "a decorator": ("def d(f): return VAR\n@d\ndef step(): ...", "step > d"),
    "a base class": ("class A: x = VAR\nclass step(A): ...", "step > A"),
    "a method": ("class A:\n  def f(self): return VAR\ndef step(): A()", "step > A"),
    "a class attribute": ("class A:\n  x = VAR\ndef step(): A().f()", "step > A"),
    "a constant that a function assigns": (
        "X = VAR\ndef step():\n  global X\n  X += 3",
        "step > X",
    ),
    "a name that is assigned twice": ("X = 1\nX = X + VAR\ndef step(): X", "step > X"),
    "the order of two assignments": (
        "VAR\ndef step(): X",
        "step > X",
        "X = 1\nX = 2",
        "X = 2\nX = 1",
    ),
    "the order of code that runs on import": (
        "L = []\nVAR\ndef step(): L",
        "code run by importing own_step",
        "L.append(1)\nL.append(2)",
        "L.append(2)\nL.append(1)",
    ),
    "a call on import": (
        "import torch\ntorch.manual_seed(VAR)\ndef step(): ...",
        "code run by importing own_step",
    ),
    "an item that is set on import": (
        "D = {}\nD['a'] = VAR\ndef step(): D",
        "code run by importing own_step",
    ),
    "a handler that a decorator registers": (
        "D = []\ndef add(f): D.append(f)\n@add\ndef f(): return VAR\ndef step(): D",
        "own_step > f",
    ),
    "a handler that a library registers": (
        "import web\n@web.get\ndef f(): return VAR\ndef step(): ...",
        "own_step > f",
    ),
    "a call inside an assignment": (
        "D = []\ndef add(x): D.append(x)\n_ = add(VAR)\ndef step(): D",
        "own_step > _",
    ),
    "a call through a builtin": (
        "D = []\ndef add(x): D.append(x + VAR)\n_ = list(map(add, [1]))\ndef step(): D",
        "step > D",
        "1)\nD += (1,",
        "1)\nD += (2,",
    ),
    "a subclass of an own class": (
        "class A: ...\nclass B(A): x = VAR\ndef step(): A",
        "own_step > B",
    ),
    "a class with a metaclass": (
        "import abc\nclass B(metaclass=abc.ABCMeta): x = VAR\ndef step(): ...",
        "own_step > B",
    ),
    "a call in the body of a class": (
        "D = []\nclass B:\n  D.append(VAR)\ndef step(): D",
        "own_step > B",
    ),
    "a default that is computed on import": (
        "def f(): ...\ndef other(x=f()): return VAR\ndef step(): ...",
        "own_step > other",
    ),
    "a conditional definition": (
        "import os\nif os.name:\n  A = VAR\nelse:\n  A = 3\ndef step(): A",
        "step > A",
    ),
    "what an import binds": (
        "from math import VAR as f\ndef step(): f(1)",
        "step > f",
        "floor",
        "ceil",
    ),
    "a function, if the step looks up names": (
        "def other(): return VAR\ndef step(): globals()['other']()",
        "step > other",
    ),
    "a function, if the step evaluates text": (
        "def other(): return VAR\ndef step(t): eval(t)",
        "step > other",
    ),
    "a function, if the step looks up its module": (
        "import sys\ndef other(): return VAR\ndef step(n): getattr(sys.modules[__name__], n)",
        "step > other",
    ),
    "a function, if the step imports sys.modules": (
        "from sys import modules as m\ndef other(): return VAR\ndef step(n): m[n]",
        "step > other",
    ),
    "a function, if the step looks up subclasses": (
        "class A: ...\ndef other(): return VAR\ndef step(): A.__subclasses__()",
        "step > other",
    ),
    "the strings of code that counts": ("def step(): return {'a': 'VAR'}", "step"),
    "a part of an f-string": ("def step(): return f'a{1:VAR}'", "step"),
}


@pytest.mark.parametrize(("before", "after"), SAME.values(), ids=SAME)
def test_the_code_stays_the_same_after_a_change_of(code, before, after):
    assert digests(code(before)) == digests(code(after))


@pytest.mark.parametrize("case", CHANGED.values(), ids=CHANGED)
def test_the_code_changes_with(code, case):
    text, path, first, second = (*case, "1", "2")[:4]
    old, new = (code(text.replace("VAR", value)) for value in (first, second))
    both = old.keys() & new.keys()
    assert path in {new[key].path for key in both if old[key].digest != new[key].digest}


# How a step uses own_helper; whether a change of LIMIT, of an unused function, and of a call on
# import counts.
IMPORTS = {
    "a function": (USES_HELPER, True, False, True),
    "a function with another name": (
        "from own_helper import helper as h\ndef step(): h(1)", True, False, True),
    "a module": ("import own_helper\ndef step(): own_helper.helper(1)", True, False, True),
    "a module with another name": (
        "import own_helper as h\ndef step(): h.helper(1)", True, False, True),
    "a module inside a function": (
        "def step():\n    import own_helper\n    own_helper.helper(1)", True, False, True),
    "a function inside a function": (
        "def step():\n    from own_helper import helper\n    helper(1)", True, False, True),
    "a module that another function uses": (
        "import own_helper\n" + STEP + "def other(): own_helper.helper(1)", False, False, True),
    "a module inside an unused function": (
        STEP + "def other():\n    import own_helper", False, False, False),
    "a module that nothing uses": ("import own_helper\n" + STEP, True, True, True),
    "a class that nothing uses": ("from own_helper import helper\n" + STEP, True, False, True),
    "a module as a value": (
        "import own_helper\ndef step(n): getattr(own_helper, n)", True, True, True),
    "a module with another name on import": (
        "import own_helper\nh = own_helper\ndef step(): h.helper", True, True, True),
    "a name that the module does not define": (
        "import own_helper\ndef step(): own_helper.unknown", True, True, True),
    "all names": ("from own_helper import *\ndef step(): helper(1)", True, True, True),
    "a module by a call": (
        "import importlib\ndef step(): importlib.import_module('own_helper').helper(1)",
        True, True, True),
    "an optional module": (
        "try: import own_helper\nexcept ImportError: own_helper = None\ndef step(): own_helper",
        True, True, True),
}  # fmt: skip


@pytest.mark.parametrize(("step", "limit", "unused", "on_import"), IMPORTS.values(), ids=IMPORTS)
def test_the_code_of_an_imported_module_counts_as_far_as_it_is_used(
    code, step, limit, unused, on_import
):
    helper = HELPER + "def unused(): return 1\n"
    before = digests(code(step, own_helper=helper))
    edits = [
        helper.replace("LIMIT = 3", "LIMIT = 4"),
        helper.replace("unused(): return 1", "unused(): return 2"),
        helper + "print(1)\n",
    ]
    counts = [digests(code(step, own_helper=edit)) != before for edit in edits]
    assert counts == [limit, unused, on_import]


def test_definitions_are_found_through_packages(code):
    found = code(
        "from own_kit import first\nfrom own_kit import part\nimport own_kit.other\n"
        "def step(): first(part.second(own_kit.other.third))\n",
        own_kit____init__="from own_kit.impl import first\nfrom . import impl\n",
        own_kit__impl="from .part import LIMIT\ndef first(x): return LIMIT\ndef unused(): ...\n",
        own_kit__part="LIMIT = 3\ndef second(x): ...\ndef unused(): ...\n",
        own_kit__other="def third(x): ...\ndef unused(): ...\n",
    )
    definitions = {key: value.path for key, value in found.items()}
    assert definitions == {
        "own_kit.impl:LIMIT": "step > first > LIMIT",
        "own_kit.impl:first": "step > first",
        "own_kit.other:third": "step > own_kit.other.third",
        "own_kit.part:LIMIT": "step > first > LIMIT",
        "own_kit.part:second": "step > own_kit.part.second",
        "own_kit:first": "step > first",
        "own_step:first": "step > first",
        "own_step:own_kit": "step > own_kit",
        "own_step:part": "step > part",
        "own_step:step": "step",
    }


def test_short_constants_have_their_value(code):
    found = code(
        "A, B = 1, 2\nC: int = 3\nD = {'b', 'a'}\nE = 'x' * 3\nF = 'x' * 99\nG = ["
        + "1, " * 40
        + "]\n"
        "API_KEY = 'hidden'\nURL = 'https://me:hidden@host'\nfrom math import floor as f\n"
        "def step(): A, B, C, D, E, G, f, API_KEY, URL\n"
    )
    values = {key.partition(":")[2]: value.value for key, value in found.items() if value.value}
    assert values == {"C": "3", "D": "{'b', 'a'}", "f": "math.floor"}


def test_a_module_that_cannot_be_read_as_python_counts_whole(code):
    before = code(USES_HELPER, own_helper="def helper(:")
    after = code(USES_HELPER, own_helper="def helper(: # edited")
    assert before.keys() == {"own_step:step", "own_step:helper", "own_helper:"}
    assert before["own_helper:"].digest != after["own_helper:"].digest


def test_definitions_of_one_module_have_the_same_digests_when_they_are_read_alone(code):
    found = digests(code(USES_HELPER, own_helper=HELPER + "print(1)\n"))
    alone = digests_in(
        "own_helper", ["", "LIMIT", "helper", "gone"], [Value("own_step", ("step",))]
    )
    assert alone == {key: value for key, value in found.items() if key.startswith("own_helper")}
    assert len(alone) == 3


def test_packages_in_a_folder_of_pip_target_are_not_the_users_code(code, tmp_path, monkeypatch):
    target = tmp_path / "target"
    (target / "installed_lib").mkdir(parents=True)
    (target / "installed_lib" / "__init__.py").write_text("def f(): pass\n")
    (target / "beside_it.py").write_text("def g(): pass\n")
    record = target / "installed_lib-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: installed-lib\nVersion: 1.0\n")
    (record / "RECORD").write_text("installed_lib/__init__.py,,\n")
    monkeypatch.syspath_prepend(target)
    files._installed_in.cache_clear()
    found = code("import beside_it, installed_lib\ndef step(): installed_lib.f, beside_it.g\n")
    assert {key.partition(":")[0] for key in found} == {"beside_it", "own_step"}
