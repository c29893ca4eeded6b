"""Processes and files that a step leaves behind do not outlive its input."""

import errno
import os
import resource
import subprocess
import sys
import textwrap

import psutil
import pytest
from harness.jobs import run_job
from harness.live import SUPPORT, wait_for

from batchmill.core.ledger.ledger import Ledger
from batchmill.core.storage import LocalStore
from batchmill.datasets.maintenance.verify import verify

# Each line starts a process that writes to its file until it is killed.
STARTS = {
    "child": "subprocess.Popen(command)",
    "session": "subprocess.Popen(command, start_new_session=True)",
    "orphan": "subprocess.run(['sh', '-c', '\"$@\" &', 'sh', *command], start_new_session=True)",
}
ENDS = {
    "returns": "return {'output': 'log.txt'}",
    "yields": "yield {'output': 'log.txt'}",
    "raises": "raise ValueError('no')",
}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a step with the given lines over six inputs. Return the kinds of its outcomes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    for number in range(6):
        (tmp_path / "in" / f"{number}.txt").write_text("x")

    def run_lines(lines):
        body = "def step(source, out):\n" + textwrap.indent(lines, "    ")
        (tmp_path / "leaving.py").write_text(f"import os, subprocess\nkept = []\n{body}\n")
        seen = []
        run_job("in", "leaving:step", "out", seen=seen)
        assert len(seen) == 6
        return {outcome.kind for outcome in seen}

    return run_lines


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("start", STARTS)
def test_a_process_ends_before_the_files_are_hashed(run, tmp_path, start, end):
    script = f'echo $$ >> {tmp_path}/pids; while true; do echo more >> "$1"; done'
    kinds = run(
        "name = str(out / 'log.txt')\n"
        f"command = ['sh', '-c', {script!r}, 'sh', name]\n"
        f"{STARTS[start]}\n"
        "while not os.path.exists(name) or os.path.getsize(name) < 100:\n"
        "    pass\n"
        f"{ENDS[end]}"
    )
    assert kinds == {"failed" if end == "raises" else "ok"}
    assert list(verify(Ledger(LocalStore("out")), hash_files=True)) == []
    pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
    assert len(pids) >= 6
    assert [pid for pid in pids if psutil.pid_exists(pid)] == []


def test_files_beside_the_folder_of_the_outputs_are_removed(run, tmp_path):
    kinds = run(
        "(out / '..' / 'beside').write_text('x')\n"
        "(out / '..' / '..' / 'above').write_text('x')\n"
        "(out / 'a').write_text('x')\n"
        "return {'output': 'a'}"
    )
    assert kinds == {"ok"}
    assert not (tmp_path / "out" / ".batchmill" / "staging").exists()
    assert list(verify(Ledger(LocalStore("out")))) == []


def test_a_worker_that_runs_out_of_file_descriptors_is_replaced(run, tmp_path):
    """Each input leaves 300 files open, and the limit is 1,000."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1000, limit[1]))
    try:
        kinds = run(
            f"open({str(tmp_path / 'pids')!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
            "kept.extend(open(source) for _ in range(300))\n"
            "return {'text': kept[-1].read()}"
        )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    assert kinds == {"ok"}
    assert len(set((tmp_path / "pids").read_text().split())) == 6


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.EACCES])
def test_an_input_that_cannot_be_read_now_is_not_missing(run, monkeypatch, number):
    def fail(path):
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr("batchmill.runs.inputs.read_input.fingerprint", fail)
    assert run("return {'size': source.stat().st_size}") == {"failed"}


@pytest.mark.slow
def test_processes_of_steps_end_if_the_process_of_their_shard_is_killed(tmp_path):
    """A killed process cannot end them itself, and they have sessions of their own."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("x")
    (tmp_path / "leaving.py").write_text(
        "import os, subprocess, threading\n"
        "def step(source):\n"
        "    for command in (['sleep', '1000'], ['sh', '-c', 'sleep 1000 & wait']):\n"
        "        started = subprocess.Popen(command, start_new_session=True)\n"
        "        note(started.pid)\n"
        "    forked = os.fork()\n"  # It executes no program, so its environment stays.
        "    if forked:\n"
        "        note(forked)\n"
        "    threading.Event().wait()\n"
        "def note(pid):\n"
        f"    with open({str(tmp_path / 'pids')!r}, 'a') as file:\n"
        "        file.write(f'{pid}\\n')\n"
    )
    script = "from harness.jobs import run_job; run_job('in', 'leaving:step', 'out')"
    shard = subprocess.Popen(
        [sys.executable, "-c", script], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(SUPPORT)}
    )
    pids = wait_for(lambda: started(tmp_path / "pids", 3), "the processes of the step", 60)
    shard.kill()
    shard.wait()
    wait_for(lambda: not any(map(psutil.pid_exists, pids)), "the end of the processes", 60)


def started(path, count):
    """Return the process ids in a file; None if there are fewer than `count`."""
    pids = [int(line) for line in path.read_text().split()] if path.exists() else []
    return pids if len(pids) == count else None
