"""A run over a new dataset starts the server's process before its own imports."""

import subprocess
import sys

import pytest
from harness.live import clean_environment

RUN = """
import os, sys
def report(event, arguments):
    if event == "subprocess.Popen" and "server_process" in str(arguments[1]):
        print("before pandas:", "pandas" not in sys.modules, flush=True)
        os._exit(2)  # The rest of the run and of the server's start are tested elsewhere.
sys.addaudithook(report)
from batchmill.cli.main import main
main(["run", "nosuch.csv", "--step", "batchmill.steps.words:split", "--output", sys.argv[1]])
"""
EARLY = "before pandas: True"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("output", "printed"),
    [("out", EARLY), ("done", ""), ("s3://bucket/out", EARLY)],
    ids=["new", "may have nothing to do", "bucket"],
)
def test_a_server_is_prepared_before_the_imports_unless_the_folder_exists(
    output, printed, tmp_path
):
    (tmp_path / "done" / ".batchmill").mkdir(parents=True)
    home = tmp_path / "home"
    done = subprocess.run(
        [sys.executable, "-c", RUN, output],
        cwd=tmp_path,
        env=clean_environment(home),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout.strip() == printed
    assert not (home / "batchmill").exists()
