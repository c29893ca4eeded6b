"""The number of workers is chosen after a trial of a few inputs, without leftovers."""

import json
import os
import subprocess
import sys

import pytest

from batchmill.planning.job import make_job
from batchmill.planning.prepare import prepare
from batchmill.runs.worker_trial import choose_workers, measure_workers

STEPS = """
import time
from pathlib import Path

def waits(source, out, row):
    time.sleep(0.05)
    (out / "copy.txt").write_text(source.read_text() + row["label"])
    with open(LOG, "a") as log:
        log.write(source.name + "\\n")
    return {"output": "copy.txt"}

def fails(source):
    raise ValueError("never")

class Batches:
    def __init__(self, inputs):
        self.inputs = inputs

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        time.sleep(0.05)
        return index

    def process_batch(self, batch):
        while True:
            time.sleep(1)

class Items:
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return {"index": index}

items = Items()
"""


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = f"LOG = {str(tmp_path / 'log')!r}\n"
    (tmp_path / "sampled_steps.py").write_text(log + STEPS)
    (tmp_path / "in").mkdir()
    rows = ["input,label"]
    for number in range(20):
        (tmp_path / "in" / f"{number:02d}.txt").write_text("x" * (number + 1))
        rows.append(f"{number:02d}.txt,label {number}")
    (tmp_path / "in" / "m.csv").write_text("\n".join(rows) + "\n")

    def prepare_for(step):
        return prepare(make_job(manifest="in/m.csv", step=f"sampled_steps:{step}", output="out"))

    return prepare_for


@pytest.mark.slow
def test_a_step_that_waits_gets_more_workers_than_cores(prepared, tmp_path):
    workers = measure_workers(prepared("waits"), 2)
    assert workers.number > 2
    assert "took 0.05" in workers.reason
    tried = (tmp_path / "log").read_text().split()
    assert len(tried) == len(set(tried))
    assert "19.txt" not in tried  # The largest would take all the time.
    assert not os.path.exists("out")


@pytest.mark.slow
def test_a_trial_does_not_change_the_prepared_job(prepared):
    work = prepared("waits")
    before = work.plan.pending
    measure_workers(work, 2)
    assert work.plan.pending.equals(before)
    assert len(work.manifest) == 20


@pytest.mark.parametrize("step", ["fails", "items", "Batches"])
def test_without_a_measurement_each_core_gets_one_worker(prepared, step):
    assert measure_workers(prepared(step), 2).number == 2


def test_with_an_allowlist_no_input_is_tried(prepared, tmp_path, monkeypatch):
    work = prepared("waits")
    monkeypatch.setenv("BATCHMILL_ALLOWED_DATASETS", str(tmp_path))
    assert measure_workers(work, 2).number == 2
    assert not (tmp_path / "log").exists()


@pytest.mark.end_to_end
def test_plan_reports_the_number_of_workers_and_the_reason(prepared):
    prepared("waits")
    command = ["plan", "in/m.csv", "--step", "sampled_steps:waits", "--output", "out", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "batchmill", *command, "--num-workers", "auto", "--cores", "2"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["num_workers"] > 2
    assert "of the time on a core" in found["reasons"][0]
    assert not os.path.exists("out")


@pytest.mark.parametrize(
    ("cores", "seconds", "busy", "number"),
    [
        (2, [1.0] * 4, 4.0, 2),
        (2, [1.0] * 4, 2.9, 2),
        (2, [1.0] * 4, 2.0, 4),
        (2, [1.0] * 4, 0.0, 16),
        (8, [1.0] * 4, 0.0, 32),
        (64, [1.0] * 4, 4.0, 8),
        (2, [0.001] * 4, 0.0, 2),
        (2, [], 0.0, 2),
    ],
)
def test_the_number_depends_on_the_share_of_cpu_time(cores, seconds, busy, number):
    assert choose_workers(cores, seconds, busy).number == number
