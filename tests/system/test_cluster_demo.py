"""The demo on a Ray cluster of two nodes: both work, and nothing of the cluster is left."""

import sys

import pandas as pd
from live import ROOT

DEMO = ROOT / "examples" / "cluster"


def test_both_nodes_work_and_are_stopped(bare_shell, work):
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
    # The fixture fails if a process of the cluster is left.
