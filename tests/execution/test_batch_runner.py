"""Batch steps: workers load, the shard's process gives batches to a model; one outcome an input."""

import os
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import batch_steps
import pandas as pd
import pytest
import torch
from jobs import run_job

import batchmill
from batchmill.errors import StepError
from batchmill.execution.batch_runner import ResultError, results_of
from batchmill.policy import FailurePolicy
from batchmill.step.load import load_step


@pytest.fixture
def words(tmp_path):
    """Return a function that writes a folder with a text of each, and names it."""

    def write(*texts):
        folder = tmp_path / "in"
        folder.mkdir()
        for number, text in enumerate(texts):
            (folder / f"{number:03d}.txt").write_text(text)
        return folder

    return write


def run(folder, step, tmp_path, **options):
    """Run a batch step; return its summary, its rows by input, and the outcomes as they came."""
    seen = []
    options.setdefault("policy", FailurePolicy(retries=0))
    summary = run_job(folder, f"batch_steps:{step}", tmp_path / "out", seen=seen, **options)
    table = pd.read_csv(tmp_path / "out" / "metadata.csv")
    rows = {row.pop("input"): row for row in table.to_dict("records")}
    return summary, rows, {outcome.input: outcome for outcome in seen}


def test_each_sample_gets_what_its_batch_gave_for_it(words, tmp_path):
    folder = words(*["x" * n for n in range(1, 12)])
    summary, rows, _ = run(folder, "Lengths", tmp_path, batch_size=4)
    assert summary.outcomes == {"ok": 11}
    assert [row["length"] for row in rows.values()] == [*range(1, 12)]
    # The last batch is smaller.
    assert Counter(row["batch"] for row in rows.values()) == {4: 8, 3: 3}


def test_the_batch_size_and_the_workers_do_not_show_in_the_table(words, tmp_path):
    folder = words(*["x" * n for n in range(1, 12)])
    tables = []
    for number, (batch_size, num_workers) in enumerate([(1, 1), (4, 2), (32, 3)]):
        output = tmp_path / str(number)
        run_job(
            folder,
            "batch_steps:Files",
            output,
            batch_size=batch_size,
            num_workers=num_workers,
        )
        names = pd.read_csv(output / "metadata.csv")["output"]
        files = [(output / name).read_bytes() for name in names]
        tables.append(((output / "metadata.csv").read_bytes(), files))
    assert tables[0] == tables[1] == tables[2]


def test_one_that_cannot_be_loaded_is_left_out_of_its_batch(words, tmp_path):
    folder = words("a", "raise this", "ccc", "dddd")
    summary, rows, outcomes = run(folder, "Lengths", tmp_path, batch_size=4, num_workers=1)
    assert summary.outcomes == {"ok": 3, "failed": 1}
    assert outcomes["001.txt"].message == "cannot be loaded: raise this"
    assert {row["batch"] for row in rows.values()} == {3}


def test_one_that_the_model_refuses_is_found_and_the_others_are_done(words, tmp_path):
    texts = ["x" * n for n in range(1, 40)]
    texts[17] = "bad one"
    folder = words(*texts)
    summary, rows, outcomes = run(folder, "Lengths", tmp_path, batch_size=16)
    assert summary.outcomes == {"ok": 38, "failed": 1}
    bad = outcomes["017.txt"]
    assert (bad.error, bad.message) == ("ValueError", "a bad one among 1")
    assert "process_batch" in bad.traceback
    # Only the step's own code, none of the engine's.
    assert str(Path(batchmill.__file__).parent) not in bad.traceback
    assert len(rows) == 38


@pytest.mark.slow
def test_one_that_the_model_refuses_is_tried_again_as_often_as_retries_allow(words, tmp_path):
    folder = words("a", "bad one", "ccc")
    policy = FailurePolicy(retries=2)
    summary, _, outcomes = run(folder, "Lengths", tmp_path, batch_size=2, policy=policy)
    assert summary.outcomes == {"ok": 2, "failed": 1}
    assert outcomes["001.txt"].attempts == 3
    assert outcomes["000.txt"].attempts == 1


def test_one_that_kills_its_worker_costs_itself(words, tmp_path, monkeypatch):
    texts = ["x" * n for n in range(1, 20)]
    texts[7] = "kill"
    folder = words(*texts)
    with TemporaryDirectory() as temporary:
        monkeypatch.setattr("tempfile.tempdir", temporary)
        summary, rows, outcomes = run(folder, "Lengths", tmp_path, batch_size=4)
        # The socket by which it has handed tensors over is gone, too.
        assert os.listdir(temporary) == []
    assert summary.outcomes == {"ok": 18, "crashed": 1}
    assert outcomes["007.txt"].error == "SIGKILL"
    assert len(rows) == 18


def test_what_a_model_shares_with_other_processes_outlives_the_shard(words, tmp_path):
    _, rows, _ = run(words("a", "bb"), "Shares", tmp_path, batch_size=2)
    assert all(os.path.isdir(row["value"]) for row in rows.values())


def test_tensors_are_handed_over_whatever_the_temporary_folder_is_called(
    words, tmp_path, monkeypatch
):
    # A socket's path has 107 bytes at most.
    (tmp_path / ("long" * 25)).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("long" * 25)))
    summary, _, _ = run(words("a", "bb", "ccc"), "Lengths", tmp_path, batch_size=2)
    assert summary.outcomes == {"ok": 3}


def test_out_of_memory_halves_the_batch_and_goes_on(words, tmp_path):
    folder = words(*["x" * n for n in range(1, 30)])
    summary, rows, outcomes = run(folder, "NoRoom", tmp_path, batch_size=16, room=3)
    assert summary.outcomes == {"ok": 29}
    assert [row["value"] for row in rows.values()] == [*range(1, 30)]
    assert {outcome.attempts for outcome in outcomes.values()} == {1}


def test_one_too_large_for_the_device_alone_is_oom(words, tmp_path):
    folder = words("a", "bb")
    policy = FailurePolicy(retries=1)
    summary, _, outcomes = run(folder, "NoRoom", tmp_path, batch_size=2, room=0, policy=policy)
    assert summary.outcomes == {"oom": 2}
    assert "can't allocate memory" in outcomes["000.txt"].message
    assert outcomes["000.txt"].attempts == 2


def test_what_it_writes_is_each_samples_own(words, tmp_path):
    folder = words("a", "bb", "ccc")
    summary, rows, _ = run(folder, "Files", tmp_path, batch_size=2)
    assert summary.outcomes == {"ok": 3}
    for number, row in enumerate(rows.values(), 1):
        assert torch.load(tmp_path / "out" / row["output"])[0] == number


def test_named_tuples_with_tuples_in_them_go_through_torchs_collate(words, tmp_path):
    _, rows, _ = run(words("a", "bb", "ccc"), "Nested", tmp_path, batch_size=2)
    assert [*rows.values()] == [{"place": n + 1, "name": f"size {n}"} for n in (1, 2, 3)]


def test_its_own_collate_pads_to_the_longest_of_the_batch(words, tmp_path):
    folder = words("a", "bb", "ccc", "d")
    _, rows, _ = run(folder, "Padded", tmp_path, batch_size=4, num_workers=1)
    assert [*rows.values()] == [{"width": 3, "letters": n} for n in (1, 2, 3, 1)]


def test_samples_that_make_no_batch_are_processed_one_by_one(words, tmp_path):
    summary, rows, _ = run(words("a", "bb", "ccc", "ddd"), "Uneven", tmp_path, batch_size=4)
    assert summary.outcomes == {"ok": 4}
    assert [row["width"] for row in rows.values()] == [1, 2, 3, 3]


def test_one_result_for_a_whole_batch_is_nobodys(words, tmp_path):
    summary, _, outcomes = run(words("a", "bb", "ccc"), "OneForAll", tmp_path, batch_size=2)
    assert summary.outcomes == {"failed": 3}
    assert "has the shape () for a batch of 2" in outcomes["002.txt"].message


def test_a_batch_that_cannot_travel_costs_the_sample_that_makes_it_so(words, tmp_path):
    folder = words("a", "bad one", "ccc", "dddd", "eeeee")
    summary, _, outcomes = run(folder, "CannotTravel", tmp_path, batch_size=4)
    assert summary.outcomes == {"ok": 4, "failed": 1}
    assert "pickle" in outcomes["001.txt"].message


def test_a_model_that_always_raises_is_seen_before_all_is_loaded(words, tmp_path):
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


def test_what_a_model_starts_stays_for_the_next_batch(words, tmp_path):
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


def test_an_object_with_process_batch_is_a_step_too(words, tmp_path):
    folder = words("a", "bb", "ccc")
    summary = run_job(folder, "batch_items:three", tmp_path / "out", batch_size=2)
    assert summary.outcomes == {"ok": 3}


def test_what_cannot_be_called_with_a_batch_is_told_before_anything_starts():
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
def test_results_are_told_apart(given, results):
    assert results_of(given, 2) == results


@pytest.mark.parametrize(
    "given", [[1], (1, 2), 5, "ab", {"a": 1}, torch.ones(3), torch.tensor(1.0), {1, 2}]
)
def test_what_belongs_to_no_sample_is_refused(given):
    with pytest.raises(ResultError, match="for a batch of 2"):
        results_of(given, 2)
