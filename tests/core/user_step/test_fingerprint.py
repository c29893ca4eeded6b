"""Test which modules, versions and parameters identify a step."""

import datetime
import json
import os
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES

import pytest

from batchmill import StepError
from batchmill.core.user_step.fingerprint import code_digest, describe_step, differences

DESCRIBE = """
import json
from batchmill.core.user_step.load import load_step
step = load_step("own_step:step", {}, search=".")
print(json.dumps({"identity": step.identity, **step.description}))
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def write(name, text=""):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    return write


def modules(ref):
    """Return the modules whose code a step reaches."""
    code = describe_step(ref, None, {})["code"]
    return sorted({key.partition(":")[0] for key in code})


def test_finding_the_code_of_a_step_imports_nothing(write):
    write(
        "own_lazy.py",
        "def step(source):\n    import own_broken.inner.deep\n    from own_spread.part import x\n"
        "    return own_broken.inner.deep.value, x.value\n",
    )
    write("own_broken/__init__.py", "raise RuntimeError('needs a GPU')")
    write("own_broken/inner/__init__.py", "raise OSError")
    write("own_broken/inner/deep.py", "value = 1")
    write("own_spread/part/x.py", "value = 1")
    assert modules("own_lazy:step") == [
        "own_broken", "own_broken.inner", "own_broken.inner.deep", "own_lazy", "own_spread.part.x",
    ]  # fmt: skip
    assert not [name for name in sys.modules if name.startswith("own_")]


def describe(seed):
    """Return a step's identity and description, as another process computes them."""
    environment = {"PATH": os.environ["PATH"], "PYTHONHASHSEED": seed}
    command = [sys.executable, "-c", DESCRIBE]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.slow
def test_sets_have_the_same_identity_in_every_process(write):
    write(
        "own_step.py",
        "WORDS = {'one', 'two', 'three', 'four', 'five'}\n"
        "def step(source, words=WORDS, more={'a': [frozenset(WORDS)]}): ...\n"
        "step.version = (WORDS, 2)\n",
    )
    first, second = (describe(seed=seed) for seed in "12")
    assert first == second
    assert first["params"]["words"] == '["five","four","one","three","two"]'
    assert first["version"] == '[["five","four","one","three","two"],2]'


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (None, None),
        ("1.0", "1.0"),
        (2, 2),
        (1.5, 1.5),
        (("2.1", 2), '["2.1",2]'),
        ([1, None], "[1,null]"),
        ({"b": 1, "a": {2}}, '{"b":1,"a":[2]}'),
        ([datetime.date(2026, 1, 2)], '["2026-01-02"]'),
        (property(lambda self: 1), None),
        (len, None),
    ],
)
def test_a_version_of_any_plain_type_counts(version, expected):
    def step(source): ...

    step.version = version  # type: ignore[attr-defined]
    assert describe_step("own_step:step", step, {})["version"] == expected


def test_a_version_that_has_no_text_is_rejected():
    def step(source): ...

    step.version = (object(), 2)  # type: ignore[attr-defined]
    with pytest.raises(StepError, match=r"step own_step:step: its version .* cannot be"):
        describe_step("own_step:step", step, {})


def test_a_compiled_module_of_the_user_counts(write, tmp_path):
    name = f"own_fast{EXTENSION_SUFFIXES[0]}"
    write("own_user.py", "import own_fast\ndef step(source): ...\n")
    write(name, "\x7fELF one")
    first = code_digest("own_user:step")
    assert modules("own_user:step") == ["own_fast", "own_user"]
    write(name, "\x7fELF two")
    assert code_digest("own_user:step") != first


def test_a_module_that_is_imported_by_a_call_with_its_name_counts(write):
    write("own_kit/plugin.py", "x = 1")
    write("own_other.py", "x = 1")
    write("own_near.py", "x = 1")
    write(
        "own_caller.py",
        "from importlib import import_module\nimport importlib\n"
        "def step(source, name='own_unknown'):\n"
        "    importlib.import_module('own_kit.plugin'), __import__('own_other')\n"
        "    import_module(name), print('own_user'), import_module()\n"
        "    import_module('.own_near', 'package')\n",
    )
    assert modules("own_caller:step") == ["own_caller", "own_kit.plugin", "own_other"]


OLD = "from own_rules import helper\ndef step(source): return helper(source)\n"
RULES = "THRESHOLD = 3\nWORDS = [{}]\ndef helper(x): return x > THRESHOLD, WORDS\n"


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ({}, []),
        ({"own_rules": ("= 3", "= 5")}, ["step > helper > THRESHOLD: 3 -> 5"]),
        ({"own_rules": ("x >", "x <")}, ["step > helper changed"]),
        ({"own_rules": ("[0, ", "[1, ")}, ["step > helper > WORDS changed"]),
        ({"own_rules": ("> THRESHOLD", "> 3")}, ["step > helper changed"]),
        ({"own_rules": ("def", "@print\ndef")}, [
            "step > helper changed"
        ]),
        ({"own_caller": ("helper(source)", "helper(1)")}, ["step changed"]),
        ({"own_caller": ("from own_rules", "from own_other")}, [
            "step > helper: own_rules.helper -> own_other.helper"
        ]),
        ({"own_rules": ("THRESHOLD = 3\n", "THRESHOLD = 3\nprint(1)\n")}, [
            "code run by importing own_rules is new"
        ]),
    ],
)  # fmt: skip
def test_the_differences_name_what_changed(write, edits, expected):
    texts = {"own_caller": OLD, "own_rules": RULES.format("0, " * 99)}
    for name, text in texts.items():
        write(f"{name}.py", text)
    write("own_other.py", "def helper(x): ...\n")
    before = json.loads(json.dumps(describe_step("own_caller:step", None, {})))
    for name, (old, new) in edits.items():
        write(f"{name}.py", texts[name].replace(old, new))
    after = describe_step("own_caller:step", None, {})
    assert differences(before, after) == expected
    if expected and expected[0].endswith("is new"):
        assert differences(after, before) == [expected[0].replace("is new", "was removed")]


def test_a_description_of_an_earlier_version_of_batchmill_is_compared():
    now = {"ref": "a:step", "version": None, "params": {}, "code": {}}
    before = {"ref": "a:step", "version": None, "params": {}, "sources": {"a": "x"}}
    assert differences(before, now) == [
        "this version of batchmill identifies the code of a step in another way"
    ]
