"""Test which modules, versions and parameters identify a step."""

import datetime
import json
import os
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES

import pytest

from batchmill import StepError
from batchmill.step.fingerprint import describe_step, sources_of

DESCRIBE = """
import json
from batchmill.step.load import load_step
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


def test_finding_the_sources_of_a_step_imports_nothing(write):
    write(
        "own_lazy.py",
        "def step(source):\n    import own_broken.inner.deep\n    from own_spread.part import x\n",
    )
    write("own_broken/__init__.py", "raise RuntimeError('needs a GPU')")
    write("own_broken/inner/__init__.py", "raise OSError")
    write("own_broken/inner/deep.py")
    write("own_spread/part/x.py")
    assert list(sources_of("own_lazy:step")) == [
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
    first = sources_of("own_user:step")
    assert list(first) == ["own_fast", "own_user"]
    write(name, "\x7fELF two")
    assert sources_of("own_user:step")["own_fast"] != first["own_fast"]


def test_a_module_that_is_imported_by_a_call_with_its_name_counts(write):
    write("own_kit/plugin.py")
    write("own_other.py")
    write("own_near.py")
    write(
        "own_caller.py",
        "from importlib import import_module\nimport importlib\n"
        "def step(source, name='own_unknown'):\n"
        "    importlib.import_module('own_kit.plugin'), __import__('own_other')\n"
        "    import_module(name), print('own_user'), import_module()\n"
        "    import_module('.own_near', 'package')\n",
    )
    assert list(sources_of("own_caller:step")) == ["own_caller", "own_kit.plugin", "own_other"]
