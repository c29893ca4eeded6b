"""The step, or a file that it reads, changes during a run.

Outcomes of the new version are not recorded. Their inputs stay pending for the next run.
"""

import socket
import sys
from dataclasses import replace

import pandas as pd
import pytest
from harness.jobs import job_of, run_job

from batchmill import StepError
from batchmill.core.planning.batching import Cores
from batchmill.core.planning.prepare import prepare
from batchmill.datasets.publishing.run_summary import summarise
from batchmill.runs.run import open_run
from batchmill.runs.shards.process import ShardProcess
from batchmill.runs.shards.run_shard import run_shard

pytestmark = pytest.mark.slow

STEP = """
from pathlib import Path
from typing import Annotated
from batchmill.core.user_step.tracked_file import ContentCounts

VALUE = {value}

def step(source, out, *, table: Annotated[str, ContentCounts()], change: str = ""):
    here = Path(__file__).parent
    if source.name == "0.txt" and change:
        (here / change).write_text((here / f"new-{{change}}").read_text())
    import {helper}
    return {{"step": VALUE, "helper": {helper}.VALUE, "table": int(Path(table).read_text())}}
"""


class Job:
    """A step that imports a helper when it runs, and reads a table for each input."""

    def __init__(self, folder):
        self.folder = folder
        self.step, self.helper = f"step_{abs(hash(folder))}", f"helper_{abs(hash(folder))}"
        for prefix, value in (("", 1), ("new-", 2)):
            step = STEP.format(value=value, helper=self.helper)
            (folder / f"{prefix}{self.step}.py").write_text(step)
            (folder / f"{prefix}{self.helper}.py").write_text(f"VALUE = {value}\n")
            (folder / f"{prefix}table.txt").write_text(f"{value}")
        (folder / "in").mkdir()
        for number in range(4):
            (folder / "in" / f"{number}.txt").write_text("x")

    def start(self, **params):
        """Begin a run."""
        params = {"table": "table.txt"} | params
        job = job_of("in", f"{self.step}:step", "out", params=params, batch_size=1, num_workers=1)
        return open_run(prepare(job))

    def values(self):
        """Complete the dataset, and return the number of executed inputs and its rows."""
        sys.modules.pop(self.step, None)
        summary = run_job("in", f"{self.step}:step", "out", table="table.txt")
        rows = pd.read_parquet(self.folder / "out" / "metadata.parquet")
        return summary.executed, rows[["step", "helper", "table"]].to_numpy().tolist()


def shards_of(run):
    _, (whole,) = run.divide(Cores(total=1, node=1))
    return replace(whole, stop=2), replace(whole, start=2)


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Python does not notice a change within a second to a module of the same size.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    return Job(tmp_path)


@pytest.mark.parametrize("changed", ["helper", "table"])
def test_a_file_that_the_step_reads_while_it_runs(job, changed):
    name = "table.txt" if changed == "table" else f"{job.helper}.py"
    with job.start(change=name) as run:
        for shard in shards_of(run):
            with pytest.raises(StepError, match="not what the run was planned with") as error:
                run_shard(shard)
            assert str(job.folder / name) in str(error.value)
            assert socket.gethostname() in str(error.value)
        assert summarise(run.ledger, run.number).outcomes == {}
    executed, values = job.values()
    assert (executed, values) == (4, [[1, 1, 2] if changed == "table" else [1, 2, 1]] * 4)


def test_a_module_that_a_process_has_imported_keeps_its_old_code(job):
    with job.start(change=f"{job.step}.py") as run:
        for shard in shards_of(run):
            run_shard(shard)
        assert summarise(run.ledger, run.number).outcomes == {"ok": 4}
        run.end()
    # These outcomes belong to the old version.
    assert job.values() == (4, [[2, 1, 1]] * 4)


def test_a_new_process_does_not_run_another_version_than_the_plan(job):
    with job.start() as run:
        first, second = shards_of(run)
        for shard, is_refused in ((first, False), (second, True)):
            process = ShardProcess()
            try:
                if not is_refused:
                    process.run(shard, [])
                    job_source = job.folder / f"{job.step}.py"
                    job_source.write_text((job.folder / f"new-{job.step}.py").read_text())
                    continue
                with pytest.raises(StepError, match="step > VALUE ") as error:
                    process.run(shard, [])
                assert str(job_source) in str(error.value)
            finally:
                process.end()
        assert summarise(run.ledger, run.number).outcomes == {"ok": 2}
        run.end()
    assert job.values() == (4, [[2, 1, 1]] * 4)
