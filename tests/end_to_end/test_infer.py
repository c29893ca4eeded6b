"""A model over a dataset, from the command line and as a deployment."""

import shutil
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from harness.deployment import deploy, worker_of
from harness.live import STEP_MODULES, made_once
from models import Mean

from batchmill.cli.main import main


def export_model(folder):
    program = torch.export.export(
        Mean(), (torch.zeros(2, 2, 3),), dynamic_shapes=({0: torch.export.Dim("batch")},)
    )
    torch.export.save(program, folder / "mean.pt2")


@pytest.fixture
def arrays(work):
    """A folder with eight arrays, and a model."""
    (work / "arrays").mkdir()
    for number in range(8):
        np.save(work / "arrays" / f"{number}.npy", np.full((2, 3), number, np.float32))
    # An export takes seconds.
    shutil.copy(made_once("exported-model", export_model) / "mean.pt2", work)
    shutil.copy(STEP_MODULES / "models.py", work)


@pytest.mark.usefixtures("arrays")
def test_predictions_are_rows_of_a_dataset(shell, work, is_long):
    (work / "arrays" / "bad.npy").write_text("no array")
    infer = ["infer", "arrays", "--model", "mean.pt2", "-o", "out", "--classes", "a,b,c"]
    done = shell.batchmill(*infer, "--batch-size", "3")
    assert done.returncode == 1, done.stderr
    assert "bad.npy" in done.stdout + done.stderr
    table = pd.read_parquet(work / "out" / "metadata.parquet")
    assert table["predicted"].tolist() == ["c", *["b"] * 7]
    if is_long:
        code, again = shell.json(*infer)
        assert (code, again["executed"]) == (1, 0)
        assert again["outcomes"] == {"ok": 8, "failed": 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "nosuch.pt2"], "--model nosuch.pt2: no such file"),
        (["--model", "mean"], "expected a file"),
        (["--model", "mean.pt2", "--classes", "a,,b"], "a name is empty"),
        ([], "missing: --model"),
    ],
)
@pytest.mark.usefixtures("arrays")
def test_a_wrong_model_is_rejected_before_the_run(work, monkeypatch, capsys, options, message):
    monkeypatch.chdir(work)
    with pytest.raises(SystemExit) as ended:
        main(["infer", "arrays", "-o", "out", *options])
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert message in " ".join(err.split())
    assert not (work / "out").exists()


@pytest.mark.long
@pytest.mark.usefixtures("arrays")
def test_a_deployment_runs_a_model(shell, api, work):
    shell.environment["PYTHONPATH"] = str(work)
    deployed = deploy(shell, api, work)
    place = {"manifest": str(work / "arrays"), "output": str(work / "out")}
    with worker_of(shell):
        options = {"predictions": "files"}
        state = deployed("infer/run-model", model="models:mean", model_options=options, **place)
        assert state["type"] == "COMPLETED", state
        refused = deployed("infer/run-model", model="mean.pt2", **place)
    table = pd.read_parquet(work / "out" / "metadata.parquet")
    assert [np.load(work / "out" / name)[0] for name in table["output"]] == [*range(8)]
    assert "model mean.pt2: a deployment's run works in a temporary folder" in refused["message"]


TWO_GPUS = """
import os, sys, torch
torch.cuda.device_count = lambda: 2
torch.cuda.is_available = lambda: True
from batchmill.cli.main import main
main(sys.argv[1:])
"""


@pytest.mark.usefixtures("arrays")
@pytest.mark.parametrize(("device", "used"), [("auto", {"0", "1"}), ("cuda:1", {"all"})])
def test_a_shard_runs_on_each_gpu(shell, work, device, used):
    (work / "two.py").write_text(TWO_GPUS)
    shutil.copy(STEP_MODULES / "which_gpu.py", work)
    (work / "meet").mkdir()
    meet = ["--param", f"meet={work}/meet", "--param", f"processes={len(used)}"]
    options = ["--param", f"device={device}", *meet, "--batch-size", "1", "--num-workers", "1"]
    command = ["run", "arrays", "--step", "which_gpu:Which", "-o", "out", *options]
    done = shell.run(sys.executable, "two.py", *command)
    assert done.returncode == 0, done.stderr
    table = pd.read_parquet(work / "out" / "metadata.parquet")
    assert set(table["gpu"]) == used
