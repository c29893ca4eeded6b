"""A model that ends its process or hangs, in the process of a shard."""

import json
import shutil
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture
def texts(work):
    """Sixteen texts. One is bad."""
    (work / "in").mkdir()
    for number in range(16):
        text = "bad" if number == 13 else "x" * (number + 1)
        (work / "in" / f"{number:02d}.txt").write_text(text)
    shutil.copy(SUPPORT / "batch_steps.py", work)


@pytest.mark.parametrize(
    ("step", "outcome", "timeout"),
    [
        pytest.param("Dies", ("crashed", "ShardProcessDied"), 60, marks=pytest.mark.long),
        pytest.param("Hangs", ("timeout", "Timeout"), 3, marks=pytest.mark.long),
        pytest.param(
            "BreaksTheDevice", ("crashed", "ShardProcessDied"), 60, marks=pytest.mark.long
        ),
    ],
)
@pytest.mark.usefixtures("texts")
def test_only_the_input_that_ends_or_blocks_the_process_fails(shell, step, outcome, timeout):
    done = shell.batchmill(
        *["run", "in", "--step", f"batch_steps:{step}", "-o", "out", "--retries", "0"],
        *["--timeout", str(timeout), "--batch-size", "2", "--num-workers", "2"],
    )
    assert done.returncode == 1, done.stderr
    _, status = shell.json("status", "out")
    assert (status["outcomes"], status["pending"]) == ({"ok": 15, outcome[0]: 1}, 0)
    (failure,) = json.loads(shell.batchmill("failures", "out", "--json").stdout)
    assert (failure["input"], failure["outcome"], failure["error"]) == ("13.txt", *outcome)
