"""A torch Dataset whose `__init__` fails for some files costs these files only."""

from contextlib import ExitStack
from dataclasses import replace

import pytest
from harness.crashing import in_child
from harness.jobs import job_of

from batchmill.core.ledger.ledger import Ledger
from batchmill.core.planning.batching import Cores
from batchmill.core.planning.prepare import prepare
from batchmill.core.storage import LocalStore
from batchmill.errors import StepError
from batchmill.runs.run import open_run
from batchmill.runs.shards.run_shard import run_shard

pytestmark = pytest.mark.slow

MODULE = """
import os, time
from pathlib import Path

def check(path):
    if Path(path).read_text() == "{bad}":
        {fault}

class Checked:
    def __init__(self, inputs):
        self.inputs = inputs
        for path in inputs:
            check(path)
    def __len__(self):
        return len(self.inputs)
    def __getitem__(self, index):
        return {{"word": Path(self.inputs[index]).read_text()}}

class Filtered(Checked):
    def __init__(self, inputs):
        self.inputs = [path for path in inputs if Path(path).read_text() != "simple"]

class Batched(Checked):
    def process_batch(self, batch):
        return batch
"""
HANGS = "while True: time.sleep(1)"
BAD = "scaleable"


@pytest.fixture
def shard_of(words, tmp_path, monkeypatch):
    """A function that plans a run of a class over four words. It returns the only shard."""
    monkeypatch.chdir(tmp_path)

    with ExitStack() as stack:
        # The limit ends this process, so only what hangs has a short one.
        def plan(name, fault, timeout=60):
            (tmp_path / "checking.py").write_text(MODULE.format(bad=BAD, fault=fault))
            options = {"timeout": timeout, "retries": 0, "batch_size": 4, "num_workers": 1}
            job = job_of(words / "manifest.csv", f"checking:{name}", tmp_path / "out", **options)
            run = stack.enter_context(open_run(prepare(job)))
            _, (shard,) = run.divide(Cores(total=1, node=1))
            return shard

        yield plan


def test_each_input_of_a_batch_step_has_the_traceback_of_init(shard_of):
    """The inputs share one exception, which must not grow."""
    shard, seen = shard_of("Batched", "raise ValueError('damaged')"), []
    run_shard(shard, seen.append)
    assert {outcome.kind for outcome in seen} == {"failed"}
    assert len({outcome.traceback for outcome in seen}) == 1


def kinds_of(shard):
    seen = {}
    run_shard(shard, lambda outcome: seen.update({outcome.input: outcome.kind}))
    return seen


def bad_files(words):
    return {path.name for path in words.glob("*.txt") if path.read_text() == BAD}


def test_only_the_input_that_init_rejects_fails(shard_of, words):
    kinds = kinds_of(shard_of("Checked", "raise ValueError('damaged')"))
    assert len(kinds) == 4
    assert {name for name, kind in kinds.items() if kind == "failed"} == bad_files(words)


def test_only_the_input_that_the_class_leaves_out_fails(shard_of, words):
    kinds = kinds_of(shard_of("Filtered", "pass"))
    assert sorted(kinds.values()) == ["failed", "ok", "ok", "ok"]


@pytest.mark.parametrize(
    ("fault", "outcome", "code"), [(HANGS, "timeout", 1), ("os._exit(7)", "crashed", 7)]
)
def test_only_the_input_for_which_init_hangs_or_dies_fails(shard_of, words, fault, outcome, code):
    shard = shard_of("Checked", fault, timeout=5)
    assert in_child(lambda: run_shard(shard)) == code
    kinds = kinds_of(replace(shard, attempt=2, left=4))
    assert len(kinds) == 4
    assert {name for name, kind in kinds.items() if kind == outcome} == bad_files(words)
    assert set(kinds.values()) == {outcome, "ok"}


def test_a_batch_step_whose_init_hangs_ends_the_run(shard_of):
    shard = shard_of("Batched", HANGS, timeout=0.5)
    for attempt in (1, 2, 3):
        assert in_child(lambda n=attempt: run_shard(replace(shard, attempt=n, left=4))) == 1
    with pytest.raises(StepError, match="__init__ took longer than --timeout"):
        run_shard(replace(shard, attempt=4, left=4))


def test_no_mark_stays_after_the_torch_dataset_is_created(shard_of, tmp_path):
    shard = shard_of("Checked", "pass")
    run_shard(shard)
    assert Ledger(LocalStore(tmp_path / "out")).control.creations(shard.run) == []
