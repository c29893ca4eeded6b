"""The tutorial about loops: a script, and the step that replaces it, give the same rows."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from harness.jobs import run_job
from harness.live import ROOT

EXAMPLE = ROOT / "examples" / "recipes" / "from_a_loop"
PAGE = ROOT / "docs" / "tutorials" / "from-a-loop.md"


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """Return a folder with the recordings, like a clone. The steps can be imported."""
    monkeypatch.chdir(EXAMPLE)
    shutil.copytree(ROOT / "examples" / "recordings", tmp_path / "examples" / "recordings")
    return tmp_path


def before(clone, name):
    """Run a script as its reader does, and return its table."""
    subprocess.run(
        [sys.executable, EXAMPLE / f"{name}.py"],
        cwd=clone, env=os.environ | {"HF_HOME": str(clone / "cache")}, check=True, timeout=100,
    )  # fmt: skip
    found = pd.read_csv(clone / f"{name}.csv")
    return found.assign(input=found["input"].map(os.path.basename))


def after(clone, step, manifest="", **options):
    """Run the step that replaces a script, and return its table."""
    inputs = clone / "examples" / "recordings" / manifest
    run_job(inputs, f"steps:{step}", clone / "out", options=options)
    return pd.read_csv(clone / "out" / "metadata.csv")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "step"),
    [("before_loop", "mono"), ("before_joblib", "measure"), ("before_dataloader", "Brightness")],
)
def test_a_script_over_files_and_its_step_give_the_same_rows(clone, script, step):
    expected = before(clone, script)
    found = after(clone, step, pattern="*.flac")
    pd.testing.assert_frame_equal(
        found.drop(columns="output", errors="ignore"), expected, check_exact=True
    )
    assert len(found) == 4
    for name, output in zip(found["input"], found.get("output", ()), strict=step == "mono"):
        old = clone / "mono" / f"{Path(name).stem}.wav"
        assert (clone / "out" / output).read_bytes() == old.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("script", ["before_map", "before_apply"])
def test_a_script_over_a_table_and_its_step_give_the_same_rows(clone, script):
    expected = before(clone, script)
    found = after(clone, "add_length", "manifest.csv")
    pd.testing.assert_frame_equal(found[[*expected]], expected, check_exact=True)
    assert len(found) == 12


@pytest.mark.slow
def test_a_second_run_of_the_loop_has_an_empty_table(clone):
    assert len(before(clone, "before_loop")) == 4
    with pytest.raises(pd.errors.EmptyDataError):
        before(clone, "before_loop")


def test_the_page_shows_parts_of_the_scripts_and_the_steps():
    shown = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    files = {path.name: path.read_text() for path in EXAMPLE.glob("*.py")}
    found = [name for block in shown for name, text in files.items() if block in text]
    assert len(shown) == len(found) == 8
    assert {*found} == {*files}
