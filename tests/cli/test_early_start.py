"""A run over a new dataset starts the server's process before its own imports."""

import subprocess
import sys

import pytest
from live import clean_environment

RUN = """
import os, sys
def report(event, arguments):
    if event == "subprocess.Popen" and "server_process" in str(arguments[1]):
        print("server before pandas:", "pandas" not in sys.modules, flush=True)
        os._exit(2)  # The rest of the run and of the server's start are tested elsewhere.
sys.addaudithook(report)
from batchmill.cli.main import main
main(["run", "nosuch.csv", "--step", "batchmill.steps.words:split", "--output", "out"])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("exists", "printed"), [(False, "server before pandas: True"), (True, "")])
def test_a_server_is_prepared_before_the_imports_if_the_dataset_is_new(exists, printed, tmp_path):
    if exists:  # The run may have nothing to do.
        (tmp_path / "out" / ".batchmill").mkdir(parents=True)
    home = tmp_path / "home"
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=tmp_path,
        env=clean_environment(home),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout.strip() == printed
    assert not (home / "batchmill").exists()
