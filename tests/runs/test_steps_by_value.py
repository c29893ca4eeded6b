"""Functions of notebooks, lambdas, closures and objects are steps, but no process imports them."""

import pickle
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from harness.cells import Notebook
from harness.jobs import job_of, run_job

import batchmill
from batchmill import OptionError, StepError
from batchmill.core.layout import PICKLED_STEP
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.planning.batching import Cores
from batchmill.core.planning.prepare import prepare
from batchmill.core.storage import LocalStore
from batchmill.core.user_step.value.shipping import load_given_step
from batchmill.datasets.maintenance.verify import verify
from batchmill.datasets.publishing.run_summary import summarise
from batchmill.runs.run import open_run
from batchmill.runs.shards.process import ShardProcess
from batchmill.testing import check_step

pytestmark = pytest.mark.slow

CELL = """
from __future__ import annotations
from pathlib import Path

LIMIT = 3

def helper(text):
    return len(text) * LIMIT

def step(source: Path, *, folder: Path = Path(".")):
    return {"value": helper(source.read_text()), "kind": type(folder).__name__}
"""
# Each cell has a step; the rows have the length of the input times LIMIT.
CELLS = {
    "a function": CELL,
    "a lambda": "LIMIT = 3\nstep = lambda source: {'value': len(source.read_text()) * LIMIT}",
    "a closure": (
        "def make(limit):\n"
        "    def step(source): return {'value': len(source.read_text()) * limit}\n"
        "    return step\n"
        "LIMIT = 3\nstep = make(LIMIT)"
    ),
    "a partial": (
        "from functools import partial\n"
        "def length(source, limit): return {'value': len(source.read_text()) * limit}\n"
        "LIMIT = 3\nstep = partial(length, limit=LIMIT)"
    ),
    "a bound method": (
        "class Base:\n"
        "    def __init__(self, limit): self.limit = limit\n"
        "class Length(Base):\n"
        "    def __init__(self, limit): super().__init__(limit)\n"
        "    def __call__(self, source): return {'value': len(source.read_text()) * self.limit}\n"
        "LIMIT = 3\nstep = Length(LIMIT).__call__"
    ),
    "an object": (
        "class Length:\n"
        "    def __call__(self, source): return {'value': len(source.read_text()) * LIMIT}\n"
        "LIMIT = 3\nstep = Length()"
    ),
    "a Dataset class": (
        "from pathlib import Path\nfrom torch.utils.data import Dataset\n"
        "class step(Dataset):\n"
        "    def __init__(self, inputs): self.inputs = inputs\n"
        "    def __len__(self): return len(self.inputs)\n"
        "    def __getitem__(self, index):\n"
        "        return {'value': len(Path(self.inputs[index]).read_text()) * LIMIT}\n"
        "LIMIT = 3\n"
    ),
    "an async function": (
        "import asyncio\n"
        "async def step(source):\n"
        "    await asyncio.sleep(0.01)\n"
        "    return {'value': len(source.read_text()) * LIMIT}\n"
        "LIMIT = 3\n"
    ),
    "a NamedTuple": (
        "from typing import NamedTuple\n"
        "class Row(NamedTuple):\n    value: int\n"
        "LIMIT = 3\n"
        "def step(source): return Row(len(source.read_text()) * LIMIT)\n"
    ),
}


def made(text):
    """Return the step of a new notebook."""
    return Notebook().cell(text)["step"]


@pytest.fixture
def run(words, tmp_path, monkeypatch):
    """Run a step over four words. Return the number of executed inputs, and the column `value`."""
    monkeypatch.chdir(tmp_path)

    def run(step, **options):
        summary = run_job(words / "manifest.csv", step, tmp_path / "out", **options)
        assert summary.outcomes == {"ok": 4}
        table = pd.read_parquet(tmp_path / "out" / "metadata.parquet")
        return summary.executed, table["value"].to_list()

    return run


@pytest.mark.parametrize("text", CELLS.values(), ids=CELLS)
def test_it_is_executed_once_and_again_after_a_change(run, text, words):
    lengths = [len((words / name).read_text()) for name in ("a.txt", "b.txt", "c.txt", "d.txt")]
    assert run(made(text)) == (4, [3 * length for length in lengths])
    # In a new kernel, the same cells make the same step.
    assert run(made("\n# A remark.\n" + text)) == (0, [3 * length for length in lengths])
    edited = text.replace("LIMIT = 3", "LIMIT = 5")
    assert run(made(edited)) == (4, [5 * length for length in lengths])


def test_the_plan_names_what_changed_and_it_can_be_accepted(run, words, tmp_path):
    _, before = run(made(CELL))
    edited = made(CELL.replace("LIMIT = 3", "LIMIT = 5"))
    job = job_of(words / "manifest.csv", edited, tmp_path / "out")
    assert prepare(job).step_changes == ["step > helper > LIMIT: 3 -> 5"]
    assert run(edited, options={"accept_change": True}) == (0, before)


@pytest.mark.parametrize("kind", ["a function", "a Dataset class"])
def test_another_process_gets_the_step_from_the_run(words, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    params = {"folder": "here"} if kind == "a function" else {}
    given = {"params": params, "batch_size": 2, "num_workers": 1}
    job = job_of(words / "manifest.csv", made(CELLS[kind]), tmp_path / "out", **given)
    with open_run(prepare(job)) as run:
        _, shards = run.divide(Cores(total=1, node=1))
        process = ShardProcess()
        try:
            for shard in shards:
                process.run(shard, [])
        finally:
            process.end()
        assert summarise(run.ledger, run.number).outcomes == {"ok": 4}
        rows = run.ledger.records(["rows"])["rows"].to_pylist()
        # The annotation is a text, whose names only the notebook has.
        assert kind != "a function" or all('"kind":"PosixPath"' in row for row in rows)


FAILING = """
def check(text):
    raise ValueError(text)  # The text is wrong.

step = lambda source: check(source.read_text())
"""


READING = """
import pathlib, pickle, sys, traceback

try:
    pickle.load(sys.stdin.buffer).target(pathlib.Path("a.txt"))
except ValueError:
    traceback.print_exc()
"""


def test_a_traceback_in_another_process_shows_the_lines_of_the_functions(words):
    pickled = load_given_step(made(FAILING), {}, search="").pickled
    command = [sys.executable, "-c", READING]
    run = subprocess.run(command, input=pickled, cwd=words, capture_output=True, check=True)
    shown = run.stderr.decode()
    assert "in check\n    raise ValueError(text)  # The text is wrong.\n" in shown
    assert "step = lambda source: check(source.read_text())\n" in shown


def test_a_module_beside_the_notebook_must_be_the_planned_one(run, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "beside_runs.py").write_text("def f(text): return len(text)\n")
    text = "import beside_runs\ndef step(source): return {'value': beside_runs.f(source.name)}\n"

    def edit():
        (tmp_path / "beside_runs.py").write_text("def f(text): return 7\n")

    refused = r"step > beside_runs\.f \(.*\) is not what the run was planned with"
    with pytest.raises(StepError, match=refused):
        run(made(text), before=edit)
    assert run(made(text))[0] == 4
    assert run(made(text))[0] == 0


class Hostile:
    """A pickle of it creates a file when it is read."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return Path.touch, (Path(self.place),)


def pickles(dataset):
    return list(dataset.rglob(PICKLED_STEP))


def test_a_pickle_that_the_run_has_not_written_is_never_read(run, words, tmp_path):
    hostile = pickle.dumps(Hostile(tmp_path / "read"))
    out = tmp_path / "out"

    def replace_pickle():
        (found,) = pickles(out)
        found.write_bytes(hostile)

    with pytest.raises(StepError, match="not the one that the run has written"):
        run(made(CELL), before=replace_pickle)
    assert run(made(CELL))[0] == 4
    for found in pickles(out):
        found.write_bytes(hostile)
    ledger = Ledger(LocalStore(out))
    assert list(verify(ledger)) == []
    summarise(ledger, ledger.last_known_run())
    batchmill.open_dataset(str(out))
    assert run(made(CELL))[0] == 0
    # A step that is imported needs no pickle.
    split = "batchmill.steps.words:split"
    run_job(words / "manifest.csv", split, out, options={"replace_step": True})
    assert not (tmp_path / "read").exists()


def test_an_allowlist_refuses_it(words, tmp_path, monkeypatch):
    monkeypatch.setenv("BATCHMILL_ALLOWED_STEPS", "batchmill.steps")
    job = job_of(words / "manifest.csv", made(CELL), tmp_path / "out")
    with pytest.raises(OptionError, match="step __main__:step: may not be run here"):
        prepare(job)


def test_a_step_that_uses_too_much_data_is_refused(words, tmp_path):
    step = made("LARGE = bytes(65 * 2**20)\ndef step(source): return {'value': LARGE[0]}")
    with pytest.raises(StepError, match="take more than 64 MiB"):
        prepare(job_of(words / "manifest.csv", step, tmp_path / "out"))


def test_a_step_is_tried_in_this_process(words):
    outcome = batchmill.try_one(words / "a.txt", made(CELL))
    assert (outcome.kind, outcome.error) == ("ok", "")


def test_a_step_is_checked(words):
    rows = check_step(made(CELL), [words / "a.txt", words / "b.txt"])
    assert [row["value"] for row in rows] == [18, 27]


SCRIPT = """
import sys
import batchmill
LIMIT = 3
def step(source): return {"value": len(source.read_text()) * LIMIT}
result = batchmill.run(sys.argv[1], step, sys.argv[2])
print(result.executed, *result.metadata["value"])
"""


@pytest.mark.end_to_end
def test_code_that_is_typed_into_python_runs_once(words, tmp_path):
    command = [sys.executable, "-", str(words / "manifest.csv"), str(tmp_path / "out")]
    printed = [
        subprocess.run(
            command, input=SCRIPT, cwd=tmp_path, text=True, capture_output=True, check=True
        ).stdout.splitlines()[-1]
        for _ in range(2)
    ]
    lengths = [len((words / name).read_text()) for name in ("a.txt", "b.txt", "c.txt", "d.txt")]
    values = " ".join(str(3 * length) for length in lengths)
    assert printed == [f"4 {values}", f"0 {values}"]
