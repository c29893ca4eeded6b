"""Processes that run shards: their results, their errors, and their end."""

import io
import json
import logging
import os
import signal
import sys
import threading
from collections import Counter
from contextlib import ExitStack, redirect_stderr, suppress
from pathlib import Path

import psutil
import pytest
from harness.live import wait_for

from batchmill import StepError
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.options.job_options import ExecutionOptions, JobSettings
from batchmill.core.planning.batching import Cores
from batchmill.core.planning.job import make_job
from batchmill.core.planning.prepare import prepare
from batchmill.core.storage import LocalStore
from batchmill.runs.run import open_run
from batchmill.runs.shards.process import ShardProcess, ShardProcessDiedError
from batchmill.runs.shards.process_pool import shard_processes

pytestmark = pytest.mark.slow

STEPS = """
import os, signal, subprocess, sys
from multiprocessing.shared_memory import SharedMemory
print("the module was imported", file=sys.stderr, flush=True)

def step(source, out):
    if source.name == "b.txt":
        raise ValueError("no header")
    (out / "x").write_text(str(os.getppid()))
    return {"output": "x", "parent": os.getppid()}

def gpu(source):
    return {"gpu": os.environ["CUDA_VISIBLE_DEVICES"]}

def logging_step(source, out):
    import logging
    logging.getLogger("mine").info("read %s", source.name)
    logging.getLogger("mine").debug("not shown")
    print("printed")
    return {}

class Leaving:
    def __init__(self, inputs):
        self.inputs = inputs

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return index

    def process_batch(self, batch):
        left = subprocess.Popen(["sleep", "600"]).pid
        block = SharedMemory(create=True, size=1000)
        copy = os.fork()
        return [{"left": left, "copy": copy, "block": block.name}] * len(batch)

def deadly(source, out):
    if source.name == "b.txt":
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()
    return {}
"""


@pytest.fixture
def started():
    """Return a function that lists the running shard processes that this test started.

    A test process may have other children, such as a server that several tests share.
    """

    def found():
        for child in psutil.Process().children():
            with suppress(psutil.Error):  # It has just ended.
                if "batchmill.runs.shards.process" in child.cmdline():
                    yield child

    before = set(found())
    return lambda: [child for child in found() if child not in before]


@pytest.fixture
def open_shards(words, tmp_path, monkeypatch):
    """Return a function that opens a run over the four words and returns its shards."""
    (tmp_path / "of_this_test.py").write_text(STEPS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def open_shards(step, cores=4, **execution):
        job = make_job(
            manifest=str(words),
            step=f"of_this_test:{step}",
            output=str(tmp_path / "out"),
            options=JobSettings(
                execution=ExecutionOptions(batch_size=1, num_workers=1, **execution),
                failures=FailurePolicy(retries=0),
            ),
        )
        run = held.enter_context(open_run(prepare(job)))
        return run.divide(Cores(total=cores, node=cores))[1]

    with ExitStack() as held:
        yield open_shards


@pytest.fixture
def answering(tmp_path, monkeypatch):
    """Return a function that starts a shard process which only executes some lines.

    The lines have its `connection`, which has received a shard.
    """

    def answering(lines):
        (tmp_path / "child.py").write_text(
            "import os, signal, sys\n"
            "from multiprocessing.connection import Connection\n"
            "connection = Connection(int(sys.argv[4]))\n"
            "connection.recv_bytes()\n" + lines
        )
        child = tmp_path / "child"
        # A shell, because the path of Python may contain a space.
        child.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{tmp_path}/child.py" "$@"\n')
        child.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(child))
        process = ShardProcess()
        held.callback(process.end)
        return process

    with ExitStack() as held:
        yield answering


def test_an_answer_that_a_killed_process_did_not_finish_is_a_lost_process(answering, open_shards):
    """Not an error of the shard, whose inputs then would not be executed again."""
    process = answering(
        "size = 100_000\n"
        "os.write(connection.fileno(), size.to_bytes(4) + bytes(size - 100))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with pytest.raises(ShardProcessDiedError, match="SIGKILL"):
        process.run(open_shards("step")[0], [])


def test_a_connection_error_of_a_shard_is_not_the_end_of_its_process(answering, open_shards):
    """The parent would wait for the end of a process that is alive."""
    process = answering("connection.send(ConnectionResetError('the store'))\nconnection.recv()\n")
    with pytest.raises(ConnectionResetError, match="the store"):
        process.run(open_shards("step")[0], [])


def test_a_process_that_shows_its_log_needs_no_descriptor_of_stderr(caplog):
    caplog.set_level(logging.DEBUG, "batchmill.runs.shards.process")
    with redirect_stderr(io.StringIO()):
        ShardProcess().end()


def test_one_process_runs_one_shard_after_another(open_shards, started):
    shards, outcomes, pids = open_shards("step"), Counter(), set()
    with shard_processes() as processes:
        for shard in shards:
            with processes.one() as process:
                pids.add(id(process))
                result = process.run(shard, ())
                assert sum(result.outcomes.values()) == shard.inputs
                outcomes.update(result.outcomes)
    assert len(shards) > 1
    assert len(pids) == 1
    assert outcomes == {"ok": 4, "failed": 1}
    assert not started()


def test_the_level_of_basic_config_in_a_module_of_steps_has_effect(open_shards, tmp_path):
    (tmp_path / "of_this_test.py").write_text(
        "import logging\n"
        "logging.basicConfig(level=logging.INFO)\n"
        "def step(source):\n"
        "    logging.getLogger('mine').info('read %s', source.name)\n"
        "    logging.getLogger('mine').debug('not shown')\n"
        "    raise ValueError('no header')\n"
    )
    (shard,) = open_shards("step", cores=1)
    with shard_processes() as processes, processes.one() as process:
        process.run(shard, ())
    records = Ledger(LocalStore(tmp_path / "out")).records(["input", "log"]).to_pylist()
    assert {record["log"] for record in records} == {
        f"INFO:mine:read {record['input']}\n" for record in records
    }


@pytest.mark.parametrize("level", ["off", "info"])
def test_lines_of_a_step_are_forwarded_only_if_requested(open_shards, level):
    (shard,) = open_shards("logging_step", cores=1, log_steps=level)
    found = []
    with shard_processes() as processes, processes.one() as process:
        process.run(shard, (), found.append)
    expected = {
        name: (f"INFO:mine:read {name}", "printed")
        for name in ("a.txt", "b.txt", "c.txt", "d.txt", "manifest.csv")
    }
    assert dict(found) == ({} if level == "off" else expected)
    records = Ledger(LocalStore(shard.dataset)).records(["log"])
    assert set(records["log"].to_pylist()) == {""}


def test_an_inner_block_uses_the_processes_of_the_outer_block():
    with shard_processes() as outer, shard_processes() as inner:
        assert inner is outer


def test_a_process_that_is_ready_is_used_only_by_the_thread_that_started_it(started, monkeypatch):
    """The kernel kills it when that thread ends."""
    monkeypatch.setattr("batchmill.runs.shards.process_pool._keeps_ready", True)
    is_made, is_used = threading.Event(), threading.Event()

    def run():
        with shard_processes() as processes, processes.one():
            pass
        is_made.set()
        is_used.wait(60)

    thread = threading.Thread(target=run)
    thread.start()
    assert is_made.wait(60)
    # The kernel shows the command of a new process a moment after its start.
    (ready,) = wait_for(started, "the process")
    monkeypatch.setattr("batchmill.runs.shards.process_pool._keeps_ready", False)
    with shard_processes() as processes, processes.one():
        is_other = ready not in started()
    is_used.set()
    thread.join()
    assert is_other
    assert not started()


def test_the_error_for_a_dead_process_has_its_signal_and_output(open_shards, started):
    (shard,) = open_shards("deadly", cores=1)
    with shard_processes() as processes:
        with (
            pytest.raises(ShardProcessDiedError, match="SIGKILL") as died,
            processes.one() as process,
        ):
            process.run(shard, ())
        assert "the module was imported" in str(died.value)
        with processes.one() as another:
            assert another is not process
    assert not started()


def test_an_error_of_a_shard_is_raised_in_the_parent(open_shards, tmp_path):
    shard, *_ = open_shards("step")
    (tmp_path / "of_this_test.py").unlink()
    with (
        shard_processes() as processes,
        pytest.raises(StepError, match="of_this_test"),
        processes.one() as process,
    ):
        process.run(shard, ())


def test_a_process_ends_when_its_parent_closes_the_connection(started):
    process = ShardProcess()
    # The kernel shows the command of a new process a moment after its start.
    (child,) = wait_for(started, "the process")
    assert os.getsid(child.pid) == child.pid  # Ctrl-C must not reach the child.
    process.release()
    child.wait(60)
    process.end()


def test_the_processes_of_a_batch_step_end_with_its_process(open_shards, tmp_path):
    (shard,) = open_shards("Leaving", cores=1)
    process = ShardProcess()
    process.run(shard, ())
    process.end()
    texts = Ledger(LocalStore(tmp_path / "out")).records(["rows"])["rows"].to_pylist()
    rows = [row for text in texts for row in json.loads(text)]
    blocks = [Path("/dev/shm", row.pop("block")) for row in rows]
    pids = [pid for row in rows for pid in row.values()]
    assert len(pids) == 10
    wait_for(lambda: not any(map(psutil.pid_exists, pids)), "the end of the processes")
    # Python's resource tracker, which is such a process, too, removes the shared memory.
    wait_for(lambda: not any(block.exists() for block in blocks), "the end of the shared memory")


def test_a_process_that_was_killed_can_be_ended(started):
    process = ShardProcess()
    process.kill()
    process.end()
    assert not started()


def test_the_error_names_the_signal_that_killed_the_process(started):
    process = ShardProcess()
    (child,) = wait_for(started, "the process")
    child.send_signal(signal.SIGSEGV)
    with pytest.raises(ShardProcessDiedError, match="SIGSEGV"):
        process.run(None, ())
    process.end()


def test_each_process_has_a_gpu_of_its_own_and_keeps_it(open_shards, tmp_path):
    shards = open_shards("gpu")
    gpus = ["3", "GPU-5a"]
    with shard_processes() as processes:
        with processes.one(gpus) as first, processes.one(gpus) as second:
            assert {first.gpu, second.gpu} == set(gpus)
            for shard, process in zip(shards, (first, second), strict=False):
                process.run(shard, ())
            of_first = first.gpu
        with processes.one(gpus) as again, processes.one(gpus) as other:
            assert {again.gpu, other.gpu} == set(gpus)
        with suppress(ZeroDivisionError), processes.one(gpus) as killed:
            raise ZeroDivisionError
        with processes.one(gpus) as left, processes.one(gpus) as new:
            assert new.gpu == killed.gpu != left.gpu
    rows = Ledger(LocalStore(tmp_path / "out")).records(["rows"])["rows"].to_pylist()
    seen = {row["gpu"] for text in rows for row in json.loads(text)}
    assert seen == set(gpus)
    assert of_first in gpus
