"""A model that ends its process or hangs, in the process of a shard."""

import json
import shutil

import pytest
from harness.live import STEP_MODULES

CRASHED, TIMEOUT = ("crashed", "ShardProcessDied"), ("timeout", "Timeout")


@pytest.fixture
def texts(work):
    """Sixteen texts. One is bad."""
    (work / "in").mkdir()
    for number in range(16):
        text = "bad" if number == 13 else "x" * (number + 1)
        (work / "in" / f"{number:02d}.txt").write_text(text)
    for name in ("batch_steps.py", "device_steps.py", "poison.py"):
        shutil.copy(STEP_MODULES / name, work)


def test_an_overdue_batch_of_one_input_is_retried_on_request(shell, texts, work):
    (work / "m.csv").write_text("input\nin/13.txt\n")
    done = shell.batchmill(
        *["run", "m.csv", "--step", "batch_steps:Hangs", "-o", "out", "--retries", "1"],
        *["--timeout", "3", "--retry-timeouts"],
    )
    assert done.returncode == 1, done.stderr
    (failure,) = json.loads(shell.batchmill("failures", "out", "--json").stdout)
    assert (failure["outcome"], failure["attempts"]) == ("timeout", 2)


@pytest.mark.parametrize(
    ("step", "outcome", "timeout"),
    [
        ("batch_steps:Dies", CRASHED, 60),
        ("batch_steps:Hangs", TIMEOUT, 3),
        ("batch_steps:BreaksTheDevice", CRASHED, 60),
        ("device_steps:BreaksLate", CRASHED, 60),
        ("device_steps:Hangs", TIMEOUT, 3),
    ],
)
@pytest.mark.long
@pytest.mark.usefixtures("texts")
def test_only_the_input_that_ends_or_blocks_the_process_fails(shell, step, outcome, timeout):
    done = shell.batchmill(
        *["run", "in", "--step", step, "-o", "out", "--retries", "0"],
        *["--timeout", str(timeout), "--batch-size", "2", "--num-workers", "2"],
    )
    assert done.returncode == 1, done.stderr
    _, status = shell.json("status", "out")
    assert (status["outcomes"], status["pending"]) == ({"ok": 15, outcome[0]: 1}, 0)
    (failure,) = json.loads(shell.batchmill("failures", "out", "--json").stdout)
    assert (failure["input"], failure["outcome"], failure["error"]) == ("13.txt", *outcome)
