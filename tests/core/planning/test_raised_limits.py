"""A run with a higher limit executes the inputs that exceeded the lower one."""

import pytest
from harness.jobs import job_of

from batchmill.core.ledger.parts import Origin
from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.outcome import Outcome
from batchmill.core.planning.batching import Cores
from batchmill.core.planning.plan_file import PlanFile
from batchmill.core.planning.prepare import prepare
from batchmill.core.planning.run_spec import as_planned
from batchmill.runs.run import open_run

OUTCOMES = {"a.txt": "timeout", "b.txt": "oom", "c.txt": "failed", "d.txt": "ok"}


@pytest.fixture
def job(words, tmp_path, monkeypatch):
    """Return a function that returns the job with some limits."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reading.py").write_text("def read(source):\n    return {}\n")
    return lambda **limits: job_of(words / "manifest.csv", "reading:read", "out", **limits)


def record_outcomes(job):
    """Record a run of the job in which the inputs had `OUTCOMES`. Returns the ledger."""
    with open_run(prepare(job)) as run:
        run.divide(Cores(total=1, node=1))
        planned = PlanFile(run.ledger, run.number).rows(0, run.pending)
        records = []
        for row, name in enumerate(planned["input"].to_pylist()):
            outcome = Outcome(name, name, OUTCOMES[name], 1, 0.1, 1.0, "here")
            origin = Origin("{}", run.prepared.step.identity, run.number)
            records.append((as_planned(outcome, planned, row), origin))
        run.ledger.commit(f"{run.number:06d}-x-00000", records)
    return run.ledger


def released(job):
    return prepare(job).plan.first("limit", 9)


@pytest.mark.parametrize(
    ("before", "now", "names"),
    [
        ({"timeout": 5}, {"timeout": 5}, []),
        ({"timeout": 5}, {"timeout": 4}, []),
        ({"timeout": 5}, {"timeout": 6}, ["a.txt"]),
        ({"timeout": 5}, {"timeout": 0}, ["a.txt"]),
        ({"memory_limit": "1G"}, {"memory_limit": "2G"}, ["b.txt"]),
        ({"memory_limit": "1G"}, {}, ["b.txt"]),
        ({"memory_limit": "1G"}, {"memory_limit": "1G", "timeout": 7200}, ["a.txt"]),
        ({}, {"memory_limit": "900G"}, []),
    ],
    ids=str,
)
def test_a_higher_limit_releases_the_inputs_that_exceeded_the_lower_one(job, before, now, names):
    record_outcomes(job(**before))
    assert released(job(**now)) == names


def test_an_input_that_exceeds_the_higher_limit_too_is_not_executed_again(job):
    record_outcomes(job(timeout=5))
    record_outcomes(job(timeout=6))
    assert released(job(timeout=6)) == []
    assert released(job(timeout=7)) == ["a.txt"]


@pytest.mark.parametrize("damage", ["removed", "changed"])
def test_inputs_stay_quarantined_if_their_limit_is_unknown(job, damage):
    """The folders of old runs are removed."""
    ledger = record_outcomes(job(timeout=5))
    name = PlanFile(ledger, 1).settings_name
    if damage == "removed":
        ledger.store.delete(name)
    else:
        ledger.store.write(name, b"damaged")
    assert released(job(timeout=6)) == []


def test_an_equal_policy_written_in_another_way_raises_no_limit(job):
    record_outcomes(job(memory_limit="1G"))
    assert FailurePolicy(memory_limit="1024M") != FailurePolicy(memory_limit="1G")
    assert released(job(memory_limit="1024M")) == []
