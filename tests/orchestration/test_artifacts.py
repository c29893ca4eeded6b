"""The artifacts of a run in the Prefect UI: their texts fit into the columns of Prefect's page."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from harness.jobs import run_job

from batchmill.core.ledger.open import open_ledger
from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.datasets.publishing.report import write_report
from batchmill.datasets.publishing.run_summary import Summary
from batchmill.orchestration.artifacts import (
    artifact_key,
    failure_rows,
    final_message,
    summary_text,
)
from batchmill.runs.progress import Failure

STEP = """
def step(source):
    if "bad" in source.name:
        raise ValueError(f"the histogram of {source} has no bins")
    return {"size": 1}
"""
# At a width of 1,200 pixels, a line of code on the page of an artifact has 62 characters.
LINE = 62


@pytest.fixture
def failed(tmp_path, monkeypatch):
    """The counts of a run whose inputs have long names."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "longnames.py").write_text(STEP)
    folder = tmp_path / "in" / "a_long_folder_name_of_a_collection" / "with_another_long_folder"
    folder.mkdir(parents=True)
    for name in ("bad", "good"):
        for number in range(2):
            (folder / f"{name}_recording_of_the_collection_{number:05d}.txt").write_text(name)
    return run_job("in", "longnames:step", "out", policy=FailurePolicy(retries=0))


@pytest.fixture
def text(failed):
    """The summary of this run."""
    return summary_text(write_report(open_ledger("out"), failed.run, "out"))


def test_no_word_of_the_summary_is_wider_than_prefects_column(text):
    without_commands = re.sub(r"```.*?```|\(data:[^)]*\)", "", text, flags=re.DOTALL)
    assert "recording_of_the_collection_00001.txt" in without_commands
    assert max(map(len, without_commands.split())) <= LINE
    slowest = [line for line in text.splitlines() if line.endswith("_00000.txt` |")]
    assert len(slowest) == 2
    assert max(map(len, slowest)) <= LINE


def test_the_reasons_come_before_the_counts(text):
    failures, counts = (text.index(f"## {title}") for title in ("Failures", "Counts"))
    assert failures < counts
    assert "1. **2 inputs**, failed: `ValueError: the histogram of" in text[failures:counts]
    assert "batchmill retry out" in text[failures:counts]


def test_a_bar_is_escaped_in_tables_only(tmp_path, monkeypatch):
    """Markdown shows a backslash before a bar, except in a table."""
    monkeypatch.chdir(tmp_path)
    Path("bars.py").write_text("def step(source): raise ValueError('left|right')\n")
    Path("in").mkdir()
    Path("in/a|b.txt").write_text("")
    failed = run_job("in", "bars:step", "out", policy=FailurePolicy(retries=0))
    text = summary_text(write_report(open_ledger("out"), failed.run, "out"))
    assert "failed: `ValueError: left|right (in step, bars.py)`: `a|b.txt`" in text
    assert "| failed | `a\\|b.txt` |" in text


def test_a_row_of_the_failures_is_narrow_and_keeps_the_ends_of_names():
    name = "a_long_folder_name_of_a_collection/recording_00001.txt"
    (row,) = failure_rows([Failure(name, "failed", 2, "ValueError: " + "much " * 99)])
    assert list(row) == ["reason", "input", "outcome", "attempts"]
    assert str(row["reason"]).startswith("ValueError: much much")
    assert str(row["input"]).endswith("recording_00001.txt")
    assert len(f"{row['reason']}{row['input']}") <= 70
    (short,) = failure_rows([Failure("a.txt", "failed", 2, "ValueError: no")])
    assert (short["reason"], short["input"]) == ("ValueError: no", "a.txt")


def test_the_failures_have_the_most_frequent_reasons_first():
    reasons = ["rare", "often", "unique", "often", "rare", "often"]
    rows = failure_rows(Failure(f"{n}.txt", "failed", 1, r) for n, r in enumerate(reasons))
    assert [row["reason"] for row in rows] == [*["often"] * 3, *["rare"] * 2, "unique"]
    assert [row["input"] for row in rows[:3]] == ["1.txt", "3.txt", "5.txt"]


def test_the_state_message_of_a_failed_run_has_the_first_reason_in_short_words(failed):
    message = final_message(failed, [], "summary-out-1a2b")
    assert message.startswith("4 inputs: 2 ok, 2 failed. Group 1, 2 inputs: ValueError: the ")
    assert message.endswith("All reasons are in the artifact summary-out-1a2b.")
    assert max(map(len, message.split())) <= 34
    group = failed.groups[0]._replace(error="OutputError", message="it is empty.", place="")
    assert "2 inputs: OutputError: it is empty. All" in final_message(
        replace(failed, groups=[group]), [], "k"
    )


def test_the_state_message_of_a_failed_run_has_no_list_of_inputs():
    summary = Summary(run=1, inputs=3, outcomes={"ok": 1, "failed": 1}, pending=1, executed=2)
    assert final_message(summary, ["The run was stopped early."], "summary-clips-1a2b") == (
        "3 inputs: 1 ok, 1 failed, 1 pending. The run was stopped early. "
        "All reasons are in the artifact summary-clips-1a2b."
    )
    summary = Summary(run=1, inputs=3, outcomes={"ok": 2}, pending=1, executed=2)
    assert final_message(summary, [], "summary-clips-1a2b") == "3 inputs: 2 ok, 1 pending."


def test_a_key_is_readable_and_differs_between_datasets_of_one_name():
    one, other = (artifact_key("summary", f"/data/{folder}/Clips") for folder in "ab")
    assert one.startswith("summary-clips-")
    assert len(one) == len("summary-clips-") + 4
    assert one != other
