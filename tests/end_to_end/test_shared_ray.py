"""Several runs in one process use one connection to Ray."""

SCRIPT = """
import sys, threading, time
import batchmill

def run(name, cluster="local", seconds=0.5):
    return batchmill.run(
        "words/manifest.csv", "slow:step", name, cluster=cluster, params={"seconds": seconds},
        num_workers=1, batch_size=1,
    ).summary.outcomes

if __name__ == "__main__":
    found = {}
    import ray

    def start(name, seconds):
        thread = threading.Thread(target=lambda: found.update({name: run(name, seconds=seconds)}))
        thread.start()
        return thread

    first = start("a", 0.5)  # This thread starts Ray, and ends before the other run.
    while not ray.is_initialized():
        time.sleep(0.05)
    second = start("b", 3)
    first.join()
    assert second.is_alive()
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
STEP = """
import time
def step(source, out, *, seconds):
    time.sleep(seconds)
    return {"word": source.read_text()}
"""


def test_runs_of_one_process_share_ray(shell, words, work):
    words.rename(work / "words")
    (work / "slow.py").write_text(STEP)
    (work / "script.py").write_text(SCRIPT)
    done = shell.run("python", "script.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "refused"
    assert not (work / "e").exists()
