"""With `--retry-timeouts`, an input that exceeded its time limit is executed again."""

import pytest
from harness.jobs import run_job

from batchmill.core.options.failure_policy import FailurePolicy

pytestmark = pytest.mark.slow

STEPS = """
import asyncio, time

def is_first(source):
    mark = source.with_suffix(".begun")
    begun = mark.exists()
    mark.touch()
    return not begun

def blocking(source):
    while is_first(source):
        time.sleep(60)
    return {"n": 1}

async def waiting(source):
    while is_first(source):
        await asyncio.sleep(60)
    return {"n": 1}
"""


@pytest.mark.parametrize(
    ("step", "policy", "expected"),
    [
        ("waiting", {"retry_timeouts": True}, ("ok", 2)),
        ("blocking", {"retry_timeouts": True}, ("ok", 2)),
        ("blocking", {"retry_timeouts": True, "retries": 0}, ("timeout", 1)),
        ("blocking", {}, ("timeout", 1)),
    ],
)
def test_a_timeout_is_retried_on_request(tmp_path, monkeypatch, step, policy, expected):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "hanging_steps.py").write_text(STEPS)
    (tmp_path / "m.csv").write_text("input\na.txt\n")
    (tmp_path / "a.txt").write_text("word")
    seen = []
    policy = FailurePolicy(timeout=1, **policy)
    run_job("m.csv", f"hanging_steps:{step}", "out", policy=policy, seen=seen)
    ((kind, attempts),) = [(outcome.kind, outcome.attempts) for outcome in seen]
    assert (kind, attempts) == expected
