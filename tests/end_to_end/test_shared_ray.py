"""Several runs in one process use one connection to Ray."""

import pytest

SCRIPT = """
import os, sys, threading
from pathlib import Path
import batchmill
from gate import wait_for

def run(name, cluster="local"):
    return batchmill.run(
        "words/manifest.csv", "gate:step", name, cluster=cluster,
        params={"gate": f"{os.getcwd()}/{name}"}, num_workers=1, batch_size=1,
    ).summary.outcomes

if __name__ == "__main__":
    found = {}
    import ray

    def start(name):
        thread = threading.Thread(target=lambda: found.update({name: run(name)}))
        thread.start()
        wait_for(f"{name}.started")
        return thread

    first = start("a")  # This thread starts Ray, and ends before the other run.
    assert ray.is_initialized()
    second = start("b")
    Path("a.go").touch()
    first.join()
    assert second.is_alive()
    Path("b.go").touch()
    second.join()
    assert found == {"a": {"ok": 4}, "b": {"ok": 4}}, found
    assert not ray.is_initialized()

    ray.init(address="local", num_cpus=1, include_dashboard=False, logging_level="ERROR")
    assert run("c") == {"ok": 4}
    assert ray.is_initialized(), "the run ended somebody else's Ray"
    address = ray.get_runtime_context().gcs_address
    host, _, port = address.rpartition(":")
    assert run("d", f"{host}:{port}") == {"ok": 4}
    try:
        run("e", "127.0.0.1:1")
    except batchmill.OptionError as error:
        assert "127.0.0.1:1: this process is already connected to Ray at " + address in str(error)
        print("refused")
    else:
        raise SystemExit("not refused")
"""
GATE = """
import time
from pathlib import Path

def wait_for(path):
    while not Path(path).exists(): time.sleep(0.05)

def step(source, out, *, gate):
    # One input waits, and occupies one core. The other run needs another one.
    if source.name == "d.txt":
        Path(f"{gate}.started").touch()
        wait_for(f"{gate}.go")
    return {"word": source.read_text()}
"""


@pytest.mark.long
def test_runs_of_one_process_share_ray(shell, words, work):
    words.rename(work / "words")
    (work / "gate.py").write_text(GATE)
    for name in "cd":
        (work / f"{name}.go").touch()
    (work / "script.py").write_text(SCRIPT)
    done = shell.run("python", "script.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "refused"
    assert not (work / "e").exists()
