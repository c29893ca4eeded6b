"""The script of a batch system: a signal ends it, and the same script does the rest."""

import re
import signal

from harness.live import ROOT, wait_for

PAGE = ROOT / "docs" / "recipes" / "batch-systems.md"
STEP = "batchmill.steps.audio:split"
# The first input ends at once, and the others when a file exists.
SLOW = """
import os, time
def slow(source, *, hurry):
    while source.name > "1" and not os.path.exists(hurry):
        time.sleep(0.05)
    return {"name": source.name}
"""


def test_the_script_for_one_node_commits_at_a_signal_and_resumes(shell, work):
    """Bash runs the script of the page. Only the step and the places are others."""
    script = re.findall(r"```bash\n(#!/bin/bash.*?)```", PAGE.read_text(), re.DOTALL)[0]
    assert script.count(STEP) == script.count("/tmp/") == 1
    hurry = work / "hurry"
    script = script.replace("/tmp/", f"{work}/")
    script = script.replace(STEP, f"slow:slow --param hurry={hurry} --batch-size 1")
    (work / "job.sh").write_text(script)
    (work / "slow.py").write_text(SLOW)
    for folder in ("recordings", ".venv/bin"):
        (work / folder).mkdir(parents=True)
    (work / ".venv" / "bin" / "activate").touch()
    for number in range(5):
        (work / "recordings" / str(number)).touch()

    with (work / "log").open("w") as log:
        run = shell.start("bash", "job.sh", stderr=log)
    parts = work / "clips" / ".batchmill" / "parts"
    wait_for(lambda: list(parts.glob("*.parquet")), "the first outcomes", 120)
    run.send_signal(signal.SIGTERM)  # As `--signal=B:TERM@60`, only to the script.
    assert run.wait(timeout=120) == 130, (work / "log").read_text()
    done = shell.json("status", "clips")[1]["outcomes"]["ok"]
    assert 0 < done < 5

    hurry.touch()
    again = shell.run("bash", "job.sh")
    assert again.returncode == 0, again.stderr
    assert f"({5 - done} executed" in again.stdout + again.stderr
    assert shell.json("status", "clips")[1]["outcomes"] == {"ok": 5}
