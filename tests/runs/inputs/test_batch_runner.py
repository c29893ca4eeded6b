"""Batch steps: workers load inputs, and the shard's process runs the model on batches."""

import os
import threading
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import batch_steps
import pandas as pd
import pytest
import torch
from harness.jobs import run_job
from harness.live import STEP_MODULES

import batchmill
from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.storage.fingerprints import fingerprint
from batchmill.core.storage.objects import ObjectStore
from batchmill.core.user_step.load import load_step
from batchmill.errors import StepError, StoreError
from batchmill.runs.inputs.batch_runner import BatchRunner, ResultError, results_of
from batchmill.runs.inputs.run_input import Loaded, store_all
from batchmill.runs.inputs.staging import Input, open_staging
from batchmill.runs.workers.loaded_batches import (
    Sample,
    gather_batch,
    is_broken_device,
    is_out_of_memory,
)
from batchmill.runs.workers.worker_channel import WorkerChannel


@pytest.fixture
def words(tmp_path):
    """Return a function that writes one file per text to a folder, and returns the folder."""

    def write(*texts):
        folder = tmp_path / "in"
        folder.mkdir()
        for number, text in enumerate(texts):
            (folder / f"{number:03d}.txt").write_text(text)
        return folder

    return write


def run(folder, step, tmp_path, **options):
    """Run a batch step. Return its summary, its rows by input, and its outcomes by input."""
    seen = []
    options.setdefault("policy", FailurePolicy(retries=0))
    module = options.pop("module", "batch_steps")
    summary = run_job(folder, f"{module}:{step}", tmp_path / "out", seen=seen, **options)
    table = pd.read_csv(tmp_path / "out" / "metadata.csv")
    rows = {row.pop("input"): row for row in table.to_dict("records")}
    return summary, rows, {outcome.input: outcome for outcome in seen}


def test_each_sample_gets_its_own_result_of_the_batch(words, tmp_path):
    folder = words(*["x" * n for n in range(1, 12)])
    summary, rows, _ = run(folder, "Lengths", tmp_path, batch_size=4)
    assert summary.outcomes == {"ok": 11}
    assert [row["length"] for row in rows.values()] == [*range(1, 12)]
    # The last batch is smaller.
    assert Counter(row["batch"] for row in rows.values()) == {4: 8, 3: 3}


def test_the_table_does_not_depend_on_batch_size_or_workers(words, tmp_path):
    folder = words(*["x" * n for n in range(1, 12)])
    tables = []
    for number, (batch_size, num_workers) in enumerate([(1, 1), (4, 2), (32, 3)]):
        output = tmp_path / str(number)
        run_job(folder, "batch_steps:Files", output, batch_size=batch_size, num_workers=num_workers)
        names = pd.read_csv(output / "metadata.csv")["output"]
        files = [(output / name).read_bytes() for name in names]
        tables.append(((output / "metadata.csv").read_bytes(), files))
    assert tables[0] == tables[1] == tables[2]


def test_an_input_that_cannot_be_loaded_is_left_out_of_its_batch(words, tmp_path):
    folder = words("a", "raise this", "ccc", "dddd")
    summary, rows, outcomes = run(folder, "Lengths", tmp_path, batch_size=4, num_workers=1)
    assert summary.outcomes == {"ok": 3, "failed": 1}
    assert outcomes["001.txt"].message == "cannot be loaded: raise this"
    assert {row["batch"] for row in rows.values()} == {3}


def test_an_input_that_the_model_rejects_is_found_and_the_others_succeed(words, tmp_path):
    texts = ["x" * n for n in range(1, 40)]
    texts[17] = "bad one"
    folder = words(*texts)
    summary, rows, outcomes = run(folder, "Lengths", tmp_path, batch_size=16)
    assert summary.outcomes == {"ok": 38, "failed": 1}
    bad = outcomes["017.txt"]
    assert (bad.error, bad.message) == ("ValueError", "a bad one among 1")
    assert "process_batch" in bad.traceback
    # The traceback has only the step's code, not the engine's.
    assert str(Path(batchmill.__file__).parent) not in bad.traceback
    assert len(rows) == 38


@pytest.mark.slow
def test_an_input_that_the_model_rejects_is_retried(words, tmp_path):
    folder = words("a", "bad one", "ccc")
    policy = FailurePolicy(retries=2)
    summary, _, outcomes = run(folder, "Lengths", tmp_path, batch_size=2, policy=policy)
    assert summary.outcomes == {"ok": 2, "failed": 1}
    assert outcomes["001.txt"].attempts == 3
    assert outcomes["000.txt"].attempts == 1


def test_an_input_that_kills_its_worker_fails_alone(words, tmp_path, monkeypatch):
    texts = ["x" * n for n in range(1, 20)]
    texts[7] = "kill"
    folder = words(*texts)
    with TemporaryDirectory() as temporary:
        monkeypatch.setattr("tempfile.tempdir", temporary)
        summary, rows, outcomes = run(folder, "Lengths", tmp_path, batch_size=4)
        # The worker's socket for tensors was removed, too.
        assert os.listdir(temporary) == []
    assert summary.outcomes == {"ok": 18, "crashed": 1}
    assert outcomes["007.txt"].error == "SIGKILL"
    assert len(rows) == 18


def test_resources_that_a_model_shares_outlive_the_shard(words, tmp_path):
    _, rows, _ = run(words("a", "bb"), "Shares", tmp_path, batch_size=2)
    assert all(os.path.isdir(row["value"]) for row in rows.values())


def test_tensors_are_transferred_even_if_the_temporary_folder_has_a_long_path(
    words, tmp_path, monkeypatch
):
    # A socket's path has at most 107 bytes.
    (tmp_path / ("long" * 25)).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("long" * 25)))
    summary, _, _ = run(words("a", "bb", "ccc"), "Lengths", tmp_path, batch_size=2)
    assert summary.outcomes == {"ok": 3}


def test_out_of_memory_halves_the_batch_size(words, tmp_path):
    folder = words(*["x" * n for n in range(1, 30)])
    summary, rows, outcomes = run(folder, "NoRoom", tmp_path, batch_size=16, room=3)
    assert summary.outcomes == {"ok": 29}
    assert [row["value"] for row in rows.values()] == [*range(1, 30)]
    assert {outcome.attempts for outcome in outcomes.values()} == {1}


def test_an_input_that_is_too_large_for_the_device_is_oom(words, tmp_path):
    folder = words("a", "bb")
    policy = FailurePolicy(retries=1)
    summary, _, outcomes = run(folder, "NoRoom", tmp_path, batch_size=2, room=0, policy=policy)
    assert summary.outcomes == {"oom": 2}
    assert "can't allocate memory" in outcomes["000.txt"].message
    assert outcomes["000.txt"].attempts == 2


def test_the_memory_of_a_failed_batch_is_released_before_the_next_batch(words, tmp_path):
    folder = words(*["x" * n for n in range(1, 9)])
    summary, rows, _ = run(folder, "FillsUp", tmp_path, batch_size=8, num_workers=1)
    assert summary.outcomes == {"ok": 8}
    assert {row["released"] for row in rows.values()} == {True}


@pytest.mark.parametrize(
    ("message", "out_of_memory", "broken"),
    [
        ("CUDA error: out of memory", True, False),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True, False),
        ("CUDA error: device-side assert triggered", False, True),
        ("HIP error: an illegal memory access was encountered", False, True),
        ("mat1 and mat2 shapes cannot be multiplied", False, False),
    ],
)
def test_errors_of_a_device(monkeypatch, message, out_of_memory, broken):
    # Old versions of torch have no such class.
    monkeypatch.delattr(torch, "AcceleratorError", raising=False)
    error = RuntimeError(message)
    assert (is_out_of_memory(error), is_broken_device(error)) == (out_of_memory, broken)


def test_each_sample_has_its_own_output_folder(words, tmp_path):
    folder = words("a", "bb", "ccc")
    summary, rows, _ = run(folder, "Files", tmp_path, batch_size=2)
    assert summary.outcomes == {"ok": 3}
    for number, row in enumerate(rows.values(), 1):
        assert torch.load(tmp_path / "out" / row["output"])[0] == number


def test_torchs_collate_accepts_named_tuples_with_tuples(words, tmp_path):
    _, rows, _ = run(words("a", "bb", "ccc"), "Nested", tmp_path, batch_size=2)
    assert [*rows.values()] == [{"place": n + 1, "name": f"size {n}"} for n in (1, 2, 3)]


def test_the_steps_own_collate_pads_to_the_longest_sample(words, tmp_path):
    folder = words("a", "bb", "ccc", "d")
    _, rows, _ = run(folder, "Padded", tmp_path, batch_size=4, num_workers=1)
    assert [*rows.values()] == [{"width": 3, "letters": n} for n in (1, 2, 3, 1)]


def test_samples_that_cannot_be_collated_are_processed_one_by_one(words, tmp_path):
    summary, rows, _ = run(words("a", "bb", "ccc", "ddd"), "Uneven", tmp_path, batch_size=4)
    assert summary.outcomes == {"ok": 4}
    assert [row["width"] for row in rows.values()] == [1, 2, 3, 3]


def test_one_result_for_a_whole_batch_is_rejected(words, tmp_path):
    summary, _, outcomes = run(words("a", "bb", "ccc"), "OneForAll", tmp_path, batch_size=2)
    assert summary.outcomes == {"failed": 3}
    assert "has the shape () for a batch of 2" in outcomes["002.txt"].message


@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_table_for_a_whole_batch_is_rejected(words, tmp_path, batch_size):
    summary, _, outcomes = run(words("a", "bb"), "Table", tmp_path, batch_size=batch_size)
    assert summary.outcomes == {"failed": 2}
    assert outcomes["000.txt"].error == "ResultError"


def test_only_the_sample_that_cannot_be_pickled_fails(words, tmp_path):
    folder = words("a", "bad one", "ccc", "dddd", "eeeee")
    summary, _, outcomes = run(folder, "CannotTravel", tmp_path, batch_size=4)
    assert summary.outcomes == {"ok": 4, "failed": 1}
    assert outcomes["001.txt"].message.startswith("the sample cannot be pickled: ")


@pytest.mark.parametrize(
    ("method", "error", "name"),
    [
        ("collate_fn", "exit", "SystemExit"),
        ("collate_fn", "stop", "KeyboardInterrupt"),
        ("collate_fn", "text", "UnprintableError"),
        ("process_batch", "exit", "SystemExit"),
        ("process_batch", "text", "UnprintableError"),
        ("process_batch", "panic", "PanicError"),
    ],
)
def test_an_unusual_error_costs_only_its_sample(words, tmp_path, method, error, name):
    folder = words("a", "bad one", "ccc", "dddd", "eeeee")
    step = {"method": method, "error": error, "batch_size": 4}
    summary, _, outcomes = run(folder, "Raises", tmp_path, **step)
    assert summary.outcomes == {"ok": 4, "failed": 1}
    assert outcomes["001.txt"].error == name


def test_a_model_that_always_raises_stops_the_run_early(words, tmp_path):
    folder = words(*["x" * (n % 9 + 1) for n in range(400)])
    log = tmp_path / "log"
    options = {
        "policy": FailurePolicy(retries=0, fail_fast=True, max_failures="0"),
        "log": str(log),
        "batch_size": 4,
        "num_workers": 1,
        "cores": 1,
    }
    summary, _, _ = run(folder, "AlwaysRaises", tmp_path, **options)
    assert summary.outcomes.keys() == {"failed"}
    assert len(log.read_text().split()) < 200


def test_a_process_that_the_model_starts_survives_for_the_next_batch(words, tmp_path):
    folder = words("a", "bb", "bad one", "dddd")
    try:
        _, rows, _ = run(folder, "StartsAHelper", tmp_path, batch_size=2, num_workers=1)
        assert [row["alive"] for row in rows.values()] == [True] * 4
    finally:
        batch_steps.StartsAHelper.helper.kill()
        batch_steps.StartsAHelper.helper.wait()


def test_a_second_run_executes_nothing(words, tmp_path):
    folder = words("a", "bb", "ccc")
    run(folder, "Lengths", tmp_path)
    seen = []
    summary = run_job(folder, "batch_steps:Lengths", tmp_path / "out", seen=seen)
    assert (summary.executed, seen) == (0, [])


def test_an_object_with_process_batch_is_a_batch_step(words, tmp_path):
    folder = words("a", "bb", "ccc")
    summary = run_job(folder, "batch_items:three", tmp_path / "out", batch_size=2)
    assert summary.outcomes == {"ok": 3}


def test_process_batch_without_a_batch_argument_is_rejected_at_load():
    with pytest.raises(StepError, match=r"process_batch takes \(self\); expected one collated"):
        load_step("batch_steps:TakesNothing")


@pytest.mark.parametrize(
    ("given", "results"),
    [
        (None, [None, None]),
        ([1, 2], [1, 2]),
        (torch.tensor([[1], [2]]), [torch.tensor([1]), torch.tensor([2])]),
        ({"a": [1, 2], "b": torch.tensor([3, 4])}, [{"a": 1, "b": 3}, {"a": 2, "b": 4}]),
    ],
)
def test_a_result_is_divided_among_the_samples(given, results):
    assert results_of(given, 2) == results


@pytest.mark.parametrize(
    "given", [[1], (1, 2), 5, "ab", {"a": 1}, torch.ones(3), torch.tensor(1.0), {1, 2}]
)
def test_a_result_that_does_not_match_the_samples_is_rejected(given):
    with pytest.raises(ResultError, match="for a batch of 2"):
        results_of(given, 2)


def test_the_files_of_a_batch_are_uploaded_together(words, tmp_path, monkeypatch):
    """Each upload waits for the others. One of them fails, and only its input."""
    together = threading.Barrier(4)

    def upload(path, url):
        together.wait(30)
        if "/002." in url:
            raise StoreError(url, "access denied.", passing=False)

    monkeypatch.setattr("batchmill.core.storage.transfer.upload", upload)
    worker = "batchmill.runs.workers.worker.this_worker"
    monkeypatch.setattr(f"{worker}.channel", WorkerChannel(), raising=False)
    paths = sorted(words("a", "b", "c", "d").iterdir())
    items = [Input(path.name, path.name, str(path), {}) for path in paths]
    step = load_step("batch_steps:Files", search=str(STEP_MODULES))
    data = step.target([str(path) for path in paths])
    with open_staging(ObjectStore("memory://dataset"), "one") as staging:
        runner = BatchRunner(step=step, torch_dataset=data, inputs=items, staging=staging)
        notes = [Loaded(fingerprint(item.path), 0.0) for item in items]
        batch = gather_batch(
            [Sample(i, data[i], note) for i, note in enumerate(notes)], runner.collate
        )
        outcomes = store_all(runner.begin(batch.load()).finish())
    assert [outcome.kind for outcome in outcomes] == ["ok", "ok", "failed", "ok"]


def run_on_device(folder, tmp_path, step="OnDevice", **options):
    return run(folder, step, tmp_path, module="device_steps", **options)


def test_a_step_with_two_phases_makes_the_same_table(words, tmp_path):
    folder = words(*["x" * n for n in range(1, 40)])
    log = tmp_path / "log"
    summary, rows, _ = run_on_device(
        folder, tmp_path, batch_size=4, num_workers=2, cores=2, log=str(log)
    )
    assert summary.outcomes == {"ok": 39}
    assert [row["length"] for row in rows.values()] == [*range(1, 40)]
    assert set(log.read_text().split()) <= {"1", "2"}


def test_the_last_batch_has_a_time_limit(words, tmp_path):
    options = {"batch_size": 2, "num_workers": 1, "cores": 1}
    _, rows, _ = run_on_device(words("a", "bb"), tmp_path, "Watched", **options)
    assert [row["watched"] for row in rows.values()] == [True, True]


def test_results_are_read_while_the_next_batch_is_still_loaded(words, tmp_path):
    options = {"batch_size": 1, "num_workers": 1, "log": str(tmp_path / "log")}
    summary, _, _ = run_on_device(words("a", "bb"), tmp_path, "WaitsForTheFirst", **options)
    assert summary.outcomes == {"ok": 2}


def test_an_input_whose_result_is_an_error_fails_alone(words, tmp_path):
    texts = ["x" * n for n in range(1, 40)]
    texts[17] = "bad one"
    summary, rows, outcomes = run_on_device(words(*texts), tmp_path, batch_size=8)
    assert summary.outcomes == {"ok": 38, "failed": 1}
    assert outcomes["017.txt"].message == "the model returned NaN"
    assert [*rows] == [f"{n:03}.txt" for n in range(39) if n != 17]


@pytest.mark.parametrize("room", [3, 6, 10])
def test_a_device_that_two_batches_fill_gives_all_results(words, tmp_path, room):
    folder = words(*["x" * n for n in range(1, 40)])
    options = {"batch_size": 6, "num_workers": 1, "cores": 1, "room": room}
    summary, rows, outcomes = run_on_device(folder, tmp_path, **options)
    assert summary.outcomes == {"ok": 39}
    assert [row["length"] for row in rows.values()] == [*range(1, 40)]
    assert {outcome.attempts for outcome in outcomes.values()} == {1}


def test_methods_that_differ_in_outs_are_rejected_at_load():
    with pytest.raises(
        StepError, match="begin_batch and process_batch differ in the parameter `outs`"
    ):
        load_step("device_steps:Differ")
