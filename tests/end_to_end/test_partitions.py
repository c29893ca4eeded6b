"""Partitions with the installed command: a change of partitions executes no input."""

import pandas as pd
import pytest
from harness.live import flow_run_of

STEP = "batchmill.steps.words:split"


@pytest.mark.long
def test_partitions_are_published_and_can_be_removed_without_an_execution(shell, api, words, work):
    (words / "c.txt").write_text((words / "a.txt").read_text())
    rows = "a.txt,anna,train\nb.txt,anna,\nc.txt,ben,test\nd.txt,ben,\n"
    (words / "m.csv").write_text("input,who,partition\n" + rows)
    job = ("run", words / "m.csv", "--step", STEP, "-o", "out")
    divided = (*job, "--partition", "train=0.5,test=0.5", "--group-by", "who", "--stratify", "who")
    done = shell.batchmill(*divided)
    assert done.returncode == 0, done.stderr
    assert "Partitions: train 2, test 2." in done.stderr
    assert "(4 executed" in done.stdout
    assert "the same content are in different partitions (contents: 1)" in done.stdout
    table = pd.read_parquet(work / "out" / "metadata.parquet").drop_duplicates("input")
    assert table["partition"].tolist() == ["train", "train", "test", "test"]
    assert "<h2>Partitions</h2>" in (work / "out" / "report.html").read_text()
    code, (found,) = shell.json("verify", "out")
    assert (code, found["kind"]) == (0, "duplicate")
    run, _ = flow_run_of(api, work / "out")
    of_run = {"artifacts": {"flow_run_id": {"any_": [run["id"]]}, "type": {"any_": ["markdown"]}}}
    (artifact,) = api("/artifacts/filter", of_run)
    assert "| in partition train | 2 |" in artifact["data"]

    code, summary = shell.json(*job)
    assert (code, summary["executed"], "partitions" in summary) == (0, 0, False)
    table = pd.read_parquet(work / "out" / "metadata.parquet").drop_duplicates("input")
    assert table["partition"].fillna("").tolist() == ["train", "", "test", ""]
