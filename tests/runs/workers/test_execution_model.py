"""Random jobs with random faults give what the documentation promises.

The kinds of steps, the limits and the scripts of the inputs are random. See `execution_model.py`.
"""

import gc
import os
import threading

import psutil
import pytest
from harness.execution_model import FIRST_PAUSE, Job, now, run_with_splits
from harness.jobs import run_job
from harness.live import STEP_MODULES, wait_for

from batchmill.core.ledger import committer
from batchmill.runs import execute as engine
from batchmill.runs.shards import shard_execution
from batchmill.runs.workers import inputs_in_progress

PARTS = 8
# `make soak` plays more.
PER_PART = 5 * int(os.environ.get("BATCHMILL_JOBS", "1"))

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    monkeypatch.chdir(STEP_MODULES)
    monkeypatch.setattr(inputs_in_progress, "_FIRST_PAUSE", FIRST_PAUSE)
    monkeypatch.setattr(shard_execution, "_GRACE_SECONDS", 0.5)
    monkeypatch.setattr(committer, "COMMIT_SECONDS", 0.1)


def left_by(me):
    """Return what this process has: children, descriptors, threads, and files in memory."""
    children = {child.pid for child in me.children(recursive=True)}
    return children, me.num_fds(), set(threading.enumerate())


def play(seed, tmp_path, monkeypatch):
    """Run a job, and return the differences."""
    job = Job.random(seed)
    folder = tmp_path / str(seed)
    folder.mkdir()
    (folder / "log").mkdir()
    job.write(folder / "in")
    me, seen = psutil.Process(), []
    children, descriptors, threads = left_by(me)
    begun = now()
    with monkeypatch.context() as patch:
        if job.splits:
            patch.setattr(engine, "run_shard", run_with_splits(engine.run_shard))
        run_job(
            folder / "in", f"scripted_steps:{job.step}", folder / "out", cores=2, seen=seen,
            policy=job.policy, log=str(folder / "log"), **job.all_options,
        )  # fmt: skip
    found = job.differences(seen, folder / "log", begun)
    wait_for(lambda: left_by(me)[0] <= children, "the end of all processes", 20)
    wait_for(lambda: left_by(me)[2] <= threads, "the end of all threads", 20)
    if left_by(me)[1] > descriptors:
        gc.collect()  # It takes a second. Objects of the job may have files open.
    if left_by(me)[1] > descriptors:
        found.append(f"{left_by(me)[1] - descriptors} descriptors are open")
    if any((folder / "out" / ".batchmill").glob("staging/*")):
        found.append("temporary files are left")
    return [f"seed {seed}, {job.step}, {job.all_options}: {one}" for one in found]


@pytest.mark.parametrize("part", range(PARTS))
def test_random_jobs_give_what_is_promised(part, tmp_path, monkeypatch, request):
    first = request.config.getoption("randomly_seed") * 1000 + part * 10**6
    differences = []
    for seed in range(first, first + PER_PART):
        print("job", seed)
        differences += play(seed, tmp_path, monkeypatch)
    assert differences == []
