"""Counts the system calls and bytes of one input. Counts show a slow-down on any machine."""

import json
import os
import resource
import socket
import subprocess
import sys

import pytest
from counting import assert_within, bytes_of, calls_of, for_each_input
from harness.jobs import run_job
from harness.live import STEP_MODULES, SUPPORT

from batchmill.core.options.job_options import ExecutionOptions, JobSettings
from batchmill.core.planning.batching import Cores
from batchmill.core.planning.job import make_job
from batchmill.core.planning.prepare import prepare
from batchmill.runs.run import open_run
from batchmill.runs.shards.run_shard import run_shard

pytestmark = pytest.mark.slow

STEPS = """
import resource

def nothing(source):
    return {"n": 1}

def one_file(source, out):
    (out / "a.txt").write_text("word")
    return {"output": "a.txt"}

def arrays(source):
    for _ in range(10):
        held = [bytearray(3 * 2**20) for _ in range(4)]
        del held
    return {"pages": resource.getrusage(resource.RUSAGE_SELF).ru_minflt}
"""
FEW = 80
# The number of batches is fixed, so that the cost of a batch is not part of the slope.
BATCHES = 10
# The calls to read and hash an input, and to check the state of its worker.
READ = {"open": 1, "fstat": 1, "read": 2, "lseek": 3, "getcwd": 1}
# The additional calls create the step's folder and file, list the folder, hash the file, and move
# the folder into the dataset. One `open` checks that the folder of outputs is not a link, and one
# `stat` that the file is not a hard link. There is no `fsync`.
WRITTEN = {**READ, "open": 4, "fstat": 2, "read": 4, "stat": 3, "mkdir": 1, "list": 1, "rename": 1}


@pytest.fixture(autouse=True)
def _nothing_by_time(tmp_path, monkeypatch):
    """Write only one part and no heartbeats, because their number depends on time."""
    monkeypatch.setattr("batchmill.core.ledger.committer.COMMIT_SECONDS", 3600.0)
    monkeypatch.setattr("batchmill.core.ledger.lease.BEAT_SECONDS", 3600.0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "costs.py").write_text(STEPS)


def folder_with(tmp_path, count):
    """Create a folder of inputs with names of the same length, and their manifest."""
    folder = tmp_path / f"in{count}"
    folder.mkdir()
    names = [f"{number:04d}.txt" for number in range(count)]
    for name in names:
        (folder / name).write_text("word")
    (folder / "manifest.csv").write_text("\n".join(["input", *names]))
    return folder


def shard_of(tmp_path, step, count, counted):
    """Run `count` inputs as one shard with two workers. Return the result of `counted`."""
    job = make_job(
        manifest=str(folder_with(tmp_path, count) / "manifest.csv"),
        step=step,
        output=str(tmp_path / f"out{count}"),
        options=JobSettings(execution=ExecutionOptions(batch_size=count // BATCHES, num_workers=2)),
    )
    with open_run(prepare(job)) as run:
        _, (shard,) = run.divide(Cores(total=2, node=2))
        return counted(lambda: run_shard(shard))


@pytest.mark.parametrize(("step", "bounds"), [("nothing", READ), ("one_file", WRITTEN)])
def test_system_calls_of_an_input(tmp_path, step, bounds):
    slopes = for_each_input(lambda count: shard_of(tmp_path, f"costs:{step}", count, calls_of), FEW)
    assert_within(bounds, slopes)
    assert {"open", "read"} <= {key.what for key in slopes}, "calls are no longer counted"


def test_bytes_that_an_input_sends_between_processes(tmp_path):
    slopes = for_each_input(
        lambda count: shard_of(tmp_path, "costs:one_file", count, bytes_of), FEW
    )
    # The outcome goes through the journal. No queue carries anything. The name of the output's
    # folder has 13 characters of a hash, once in the row and once in the list of files. Two bytes
    # say that no library was imported.
    bounds = {"journal": 352 + 2 * 13 + len(socket.gethostname())}
    assert_within(bounds, slopes)
    assert {key.what for key in slopes} == set(bounds)


@pytest.mark.parametrize(("step", "looks"), [("nothing", 1), ("one_file", 2)])
def test_a_run_with_nothing_to_do_stats_each_file_once(tmp_path, step, looks):
    def second_run(count):
        job = (folder_with(tmp_path, count) / "manifest.csv", f"costs:{step}", f"out{count}")
        run_job(*job)
        return calls_of(lambda: run_job(*job))

    slopes = for_each_input(second_run, FEW)
    # One `stat` for the input, and one for the output that the ledger names. No file is opened.
    assert_within({"stat": looks}, slopes)
    assert sum(slopes.values()) == looks, "a call is no longer counted"


# A glob needs one more `stat` for each match, to check that it is a file.
@pytest.mark.parametrize(("manifest", "looks"), [("manifest.csv", 1), ("", 1), ("*.txt", 2)])
def test_a_plan_opens_no_input(tmp_path, manifest, looks):
    def plan(count):
        source = folder_with(tmp_path, count) / manifest
        job = make_job(manifest=str(source), step="costs:nothing", output=str(tmp_path / "out"))
        return calls_of(lambda: prepare(job))

    slopes = for_each_input(plan, FEW)
    assert_within({"stat": looks}, slopes)
    assert slopes, "calls are no longer counted"


PAGES = 4 * 3 * 2**20 // resource.getpagesize()  # The pages that `arrays` uses at a time.


# A process that has run other tests may have large free blocks in its heap, which a forked worker
# would use.
IN_A_NEW_PROCESS = """
import json, sys
from harness.jobs import run_job
from batchmill.core.options.failure_policy import FailurePolicy

policy = FailurePolicy(memory_limit=json.loads(sys.argv[2]))
outcomes = []
run_job(sys.argv[1], "costs:arrays", "out", num_workers=1, cores=1, seen=outcomes, policy=policy)
*_, before, last = sorted(json.loads(outcome.rows)[0]["pages"] for outcome in outcomes)
print(last - before)
"""


def pages_of_an_input(tmp_path, memory_bytes=None, **environment):
    """Return how many pages of memory the kernel gives a worker for its last input."""
    manifest = folder_with(tmp_path, 6) / "manifest.csv"
    done = subprocess.run(
        [sys.executable, "-c", IN_A_NEW_PROCESS, str(manifest), json.dumps(memory_bytes)],
        env=os.environ | {"PYTHONPATH": f"{SUPPORT}:{STEP_MODULES}:{tmp_path}"} | environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return int(done.stdout)


def test_memory_that_a_step_frees_is_reused_for_its_next_arrays(tmp_path):
    assert pages_of_an_input(tmp_path) < PAGES / 10


def test_with_a_memory_limit_a_worker_keeps_no_freed_memory(tmp_path):
    assert pages_of_an_input(tmp_path, memory_bytes=500 * 2**20) > PAGES


def test_a_users_malloc_setting_is_kept(tmp_path):
    assert pages_of_an_input(tmp_path, MALLOC_TRIM_THRESHOLD_="131072") > PAGES


def test_number_of_fsync_calls_of_a_run(tmp_path):
    job = (folder_with(tmp_path, 10) / "manifest.csv", "costs:one_file", "out")
    first, second = (
        {
            key: count
            for key, count in calls_of(lambda: run_job(*job)).items()
            if key.what == "fsync"
        }
        for _ in range(2)
    )
    # Each run syncs the lease and the plan (twice each), the record of the tables and the summary.
    # The first run also syncs the format (up to twice), the step, the part, its tables and report,
    # and the version (its description and its table).
    assert sum(first.values()) <= 6 + 10, first
    assert 0 < sum(second.values()) <= 6, second
