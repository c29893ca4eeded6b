"""Test which modules, versions and parameters identify a step."""

import sys

import pytest

from batchmill.step.fingerprint import sources_of

DESCRIBE = """
import json, sys
from batchmill.step.load import load_step
step = load_step("own_step:step", {}, search=".")
print(json.dumps([step.identity, step.description, sorted(sys.modules)]))
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
