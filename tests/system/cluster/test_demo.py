"""The demo with a Ray cluster of two nodes on one machine."""

import sys

import pandas as pd
import pytest
from harness.live import ROOT

DEMO = ROOT / "examples" / "cluster"


@pytest.mark.long
def test_both_nodes_run_shards_and_are_stopped(bare_shell, work):
    bare_shell.environment["PYTHONPATH"] = str(DEMO)
    done = bare_shell.run(
        *(sys.executable, DEMO / "two_nodes.py"),
        *(sys.executable, "-m", "batchmill", "run", ROOT / "examples/recordings/manifest.csv"),
        *("--step", "on_node:split_on_node", "--param", "seconds=2", "--output", "out"),
        *("--num-workers", "1", "--batch-size", "2"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = pd.read_parquet(work / "out" / "metadata.parquet")
    assert set(rows["node"]) == {"head", "second"}
    assert rows["source"].nunique() == 12
    # The fixture `bare_shell` fails if a process of the cluster is still running.
