"""The machines of a cluster may have several versions of a library."""

from harness.libraries import Site

STEP = """
import os
import planted

def step(source):
    return {"version": planted.VERSION}
"""


def test_a_run_on_machines_with_several_versions_of_a_library_says_so(shell, cluster, node, work):
    (work / "own_step.py").write_text(STEP)
    sites = []
    for version in ("1.0", "2.0"):
        folder = work / f"machine-{version}"
        folder.mkdir()
        sites.append(Site(folder))
        sites[-1].install("planted", version, {"planted.py": f"VERSION = '{version}'"})
        node(environment={"PYTHONPATH": f"{sites[-1].folder}:{work}"})
    shell.environment["PYTHONPATH"] = f"{sites[0].folder}:{work}"
    (work / "own").mkdir()
    for number in range(40):
        (work / "own" / f"{number}.txt").write_text("")
    options = ["--ray", cluster.client_address, "--batch-size", "1", "--num-workers", "1"]
    done = shell.batchmill("run", "own", "--step", "own_step:step", "--output", "out", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "several versions of planted: 1.0 (" in done.stdout
    listed = shell.batchmill("status", "out", "--libraries").stdout
    assert "planted: 1.0 (" in listed
    assert "), 2.0 (" in listed
