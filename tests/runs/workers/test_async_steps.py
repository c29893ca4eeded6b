"""Async steps: many inputs at a time in a worker, each with its own outcome."""

import itertools
import os
from collections import Counter

import pandas as pd
import pytest
from harness.jobs import job_of, run_job
from harness.live import STEP_MODULES

import batchmill
from batchmill import OptionError, StepError
from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.options.job_options import ExecutionOptions
from batchmill.core.planning.batching import Cores, plan_shards
from batchmill.core.planning.prepare import prepare
from batchmill.core.user_step.load import load_step
from batchmill.errors import WorkerError
from batchmill.runs import execute as engine
from batchmill.runs.shards import shard_execution
from batchmill.runs.workers import isolated_executor
from batchmill.runs.workers.input_feed import Pace

pytestmark = pytest.mark.slow

STEPS = "async_steps"
POLICY = FailurePolicy(retries=0, timeout=60)


@pytest.fixture(autouse=True)
def _steps_in_the_working_directory(monkeypatch):
    monkeypatch.chdir(STEP_MODULES)


@pytest.fixture
def log(tmp_path):
    (tmp_path / "log").mkdir()
    return tmp_path / "log"


@pytest.fixture
def run(tmp_path, log):
    """Return a function that runs a step over inputs with these texts, by name."""

    def run(step, texts, policy=POLICY, num_workers=1, concurrency=8, **others):
        (tmp_path / "in").mkdir(exist_ok=True)
        for name, text in texts.items():
            (tmp_path / "in" / name).write_text(text)
        seen = []
        run_job(
            tmp_path / "in", f"{STEPS}:{step}", tmp_path / "out", seen=seen, policy=policy,
            num_workers=num_workers, cores=num_workers, concurrency=concurrency, log=str(log),
            **others,
        )  # fmt: skip
        return {outcome.input: outcome for outcome in seen}

    return run


def fine(count):
    return {f"fine-{number:02d}": "fine" for number in range(count)}


def kinds(outcomes):
    return {name: outcome.kind for name, outcome in outcomes.items() if outcome.kind != "ok"}


def executions(log):
    return Counter({path.name: len(path.read_text().splitlines()) for path in log.iterdir()})


def table(tmp_path):
    return pd.read_parquet(tmp_path / "out" / "metadata.parquet")


@pytest.mark.parametrize("step", ["rows", "an_object", "a_method", "in_parts"])
def test_each_form_gives_its_rows(run, tmp_path, step):
    outcomes = run(step, fine(20) | {"other": "x"})
    assert len(outcomes) == 21
    assert kinds(outcomes) == {}
    assert table(tmp_path)["text"].tolist() == ["fine"] * 20 + ["x"]


@pytest.mark.parametrize(("num_workers", "concurrency"), [(1, 1), (1, 7), (2, 64)])
def test_rows_files_and_their_order_do_not_depend_on_the_concurrency(
    run, tmp_path, num_workers, concurrency
):
    texts = {f"{number:02d}": f"text {number}" for number in range(30)}
    assert kinds(run("several", texts, num_workers=num_workers, concurrency=concurrency)) == {}
    found = table(tmp_path)
    assert found["input"].tolist() == [name for name in sorted(texts) for _ in "ab"]
    assert found["letter"].tolist() == ["a", "b"] * 30
    files = found["output"].dropna()
    assert [(tmp_path / "out" / name).read_text() for name in files] == [
        texts[name].upper() for name in sorted(texts)
    ]


def test_a_class_is_entered_once_in_each_worker_and_left_at_the_end(run, tmp_path, log):
    assert kinds(run("Client", fine(40), num_workers=2, concurrency=4, prefix="> ")) == {}
    assert set(table(tmp_path)["text"]) == {"> fine"}
    workers = {str(pid) for pid in table(tmp_path)["worker"]}
    expected = [f"{what}-{pid}" for what in ("enter", "exit") for pid in workers]
    assert sorted(path.name for path in log.iterdir()) == sorted(expected)


def test_a_class_that_cannot_be_opened_is_opened_again_for_the_next_attempt(run, tmp_path):
    outcomes = run("Unopened", fine(5), FailurePolicy(retries=1, timeout=60))
    assert kinds(outcomes) == {}
    assert max(outcome.attempts for outcome in outcomes.values()) == 2
    again = run("Unopened", {"later": "x"})
    assert kinds(again) == {}


def test_an_error_of_the_opening_is_the_outcome_of_each_input_that_waits(run):
    outcomes = run("Unopened", fine(3), concurrency=3)
    assert kinds(outcomes) == dict.fromkeys(fine(3), "failed")
    assert {outcome.reason for outcome in outcomes.values()} == {
        "ConnectionError: the service is not ready"
    }
    assert "__aenter__" in outcomes["fine-00"].traceback


def test_the_concurrency_is_reached_and_not_exceeded(run, tmp_path):
    """Each input waits until six are in progress, so fewer would never end."""
    assert kinds(run("together", fine(40), concurrency=6, count=6)) == {}
    assert table(tmp_path)["most"].max() == 6


def test_one_bad_input_costs_one_input(run, log):
    texts = fine(30) | {"bad": "raise", "cancels": "cancel", "prints": "bytes"}
    outcomes = run("faulty", texts, FailurePolicy(retries=1, timeout=60))
    assert kinds(outcomes) == {"bad": "failed", "cancels": "failed", "prints": "failed"}
    assert outcomes["prints"].error == "TypeError"
    assert outcomes["bad"].reason == "ValueError: bad"
    assert "_act" in outcomes["bad"].traceback
    assert "batchmill" not in outcomes["bad"].traceback
    assert outcomes["bad"].attempts == 2
    assert executions(log) == Counter(
        dict.fromkeys(texts, 1) | {"bad": 2, "cancels": 2, "prints": 2}
    )


def test_printed_text_belongs_to_the_input_that_printed_it(run):
    texts = {f"bad-{number}": "raise" for number in range(20)}
    for name, outcome in run("faulty", texts, concurrency=20).items():
        assert outcome.log == f"printed by {name}\n"


@pytest.fixture
def _patient_with_healthy_inputs(monkeypatch):
    """They do not exceed a short time limit on a busy machine."""
    run_step = shard_execution.run_async_step

    def run_patiently(step, item, staging, hooks):
        if item.name.startswith("fine"):
            hooks = hooks._replace(limit=None)
        return run_step(step, item, staging, hooks)

    monkeypatch.setattr(shard_execution, "run_async_step", run_patiently)


@pytest.mark.usefixtures("_patient_with_healthy_inputs")
def test_an_input_that_takes_too_long_is_cancelled_alone(run, log, monkeypatch):
    monkeypatch.setattr(shard_execution, "_GRACE_SECONDS", 60.0)
    texts = fine(20) | {"slow": "wait", "thread": "thread"}
    outcomes = run("faulty", texts, FailurePolicy(retries=0, timeout=1))
    assert kinds(outcomes) == {"slow": "timeout", "thread": "timeout"}
    assert outcomes["slow"].message == "still running after 1 s (--timeout)"
    assert "await asyncio.sleep(1000)" in outcomes["slow"].traceback
    assert executions(log) == Counter(dict.fromkeys(texts, 1))
    workers = {path.read_text().split()[0] for path in log.iterdir()}
    assert len(workers) == 1


@pytest.mark.usefixtures("_patient_with_healthy_inputs")
@pytest.mark.parametrize("text", ["block", "swallow"])
def test_a_step_that_cannot_be_cancelled_is_killed_with_its_worker(run, log, text, monkeypatch):
    monkeypatch.setattr(shard_execution, "_GRACE_SECONDS", 0.5)
    texts = fine(20) | {"stuck": text}
    outcomes = run("faulty", texts, FailurePolicy(retries=0, timeout=1.5))
    assert kinds(outcomes) == {"stuck": "timeout"}
    assert "async_steps.py" in outcomes["stuck"].log
    assert len(outcomes) == len(texts)


@pytest.mark.parametrize("text", ["exit", "kill"])
def test_after_a_crash_the_inputs_in_progress_run_one_at_a_time(run, log, text):
    texts = {"0-deadly": text} | fine(20)
    outcomes = run("faulty", texts, num_workers=2, concurrency=5)
    assert kinds(outcomes) == {"0-deadly": "crashed"}
    assert len(outcomes) == len(texts)
    assert executions(log)["0-deadly"] == outcomes["0-deadly"].attempts == 2
    for name in texts:
        counts = [int(line.split()[1]) for line in (log / name).read_text().splitlines()]
        assert len(counts) == outcomes[name].attempts
        assert counts[1:] == [1] * (len(counts) - 1), "it ran again beside another input"
    assert 1 < sum(outcome.attempts == 2 for outcome in outcomes.values()) <= 5


def test_an_input_that_fills_the_memory_is_found(run):
    texts = {"0-large": "fill"} | fine(10)
    policy = FailurePolicy(retries=0, timeout=60, memory_limit="300MB")
    outcomes = run("faulty", texts, policy, concurrency=4)
    assert kinds(outcomes) == {"0-large": "oom"}
    assert len(outcomes) == len(texts)


def test_the_memory_of_others_does_not_fail_an_input_that_waits_for_its_turn(run, log):
    texts = {f"keeps-{number}": "keep" for number in range(6)}
    policy = FailurePolicy(retries=0, timeout=60, memory_limit="100MB")
    outcomes = run("faulty", texts, policy, concurrency=4, options={"rate": "2/s"})
    assert kinds(outcomes) == {}
    assert executions(log) == Counter(dict.fromkeys(texts, 1))


def test_a_refused_input_is_executed_again_within_its_retries(run, log):
    texts = fine(5) | {"busy": "busy"}
    outcomes = run("faulty", texts, FailurePolicy(retries=2, timeout=60))
    assert kinds(outcomes) == {}
    assert outcomes["busy"].attempts == 3
    (log / "busy").unlink()
    outcomes = run("faulty", {"busy": "busy"}, FailurePolicy(retries=1, timeout=60), force=True)
    assert outcomes["busy"].reason == "RetryAfter: too many requests"
    assert outcomes["busy"].attempts == 2


def test_what_an_input_leaves_behind_does_not_reach_the_next(run, tmp_path):
    texts = {"0-moves": "move", "1-leaves": "leave"} | fine(10)
    assert kinds(run("faulty", texts, concurrency=1)) == {}
    assert os.getcwd() == str(STEP_MODULES)


def test_no_input_in_progress_is_recorded_after_too_many_failures(run, tmp_path):
    texts = {"0-bad": "raise"} | {f"slow-{number}": "wait" for number in range(20)}
    policy = FailurePolicy(retries=0, timeout=60, fail_fast=True)
    outcomes = run("faulty", texts, policy, concurrency=4)
    assert kinds(outcomes) == {"0-bad": "failed"}
    assert len(outcomes) == 1


def test_try_opens_and_leaves_a_class(tmp_path, log):
    (tmp_path / "a.txt").write_text("x")
    done = batchmill.try_one(
        tmp_path / "a.txt", f"{STEPS}:Client", params={"log": str(log)}, row={"label": "l"}
    )
    assert done.rows[0]["text"] == "x"
    assert len(list(log.iterdir())) == 2


def test_options_that_need_another_step_are_refused(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_text("x")

    def refused(step, **options):
        with pytest.raises(OptionError) as raised:
            prepare(job_of(tmp_path / "in", step, tmp_path / "out", **options))
        return str(raised.value)

    plain = "steps_under_test:copy"
    assert "is not async" in refused(plain, concurrency=2)
    assert "is not async" in refused(plain, rate="2/s")
    assert "is async" in refused(f"{STEPS}:rows", confine=True)
    with pytest.raises(OptionError, match="20/s or 600/min"):
        ExecutionOptions(rate="fast")


def test_a_call_that_needs_more_than_batchmill_gives_is_refused():
    with pytest.raises(StepError, match="Move it to __init__"):
        load_step(f"{STEPS}:Needy", {})


def test_the_plan_says_how_many_inputs_run_at_a_time():
    layout = plan_shards(
        pd.Series([1] * 1000).to_numpy(),
        ExecutionOptions(concurrency=50, rate="20/s"),
        Cores(total=8, node=8),
        is_async=True,
    )
    assert layout.num_workers == 2
    at_a_time = layout.shards * 2 * 50
    assert layout.reasons[-1].startswith(f"concurrency 50: {at_a_time} inputs at a time")
    # All shards together begin 20 in a second.
    assert layout.shards / layout.pace_seconds == pytest.approx(20)


def test_turns_of_a_pace_have_the_given_distance():
    pace = Pace(100, now=7)
    assert pace.next_turn(7) is None
    turns = []
    for now in range(7, 600):
        turn = pace.next_turn(now)
        turns += [turn] if turn is not None else []
    assert len(turns) == 5
    assert all(later - turn >= 100 for turn, later in itertools.pairwise([7, *turns]))


def test_turns_that_were_not_taken_cannot_be_taken_later():
    pace = Pace(100, now=0)
    assert pace.next_turn(1000) == 1000
    assert pace.next_turn(1050) is None


def test_without_a_rate_each_turn_is_now():
    pace = Pace(0, now=0)
    assert [pace.next_turn(5) for _ in range(3)] == [5, 5, 5]


def test_a_worker_that_cannot_be_restored_first_ends_its_other_inputs(run, log):
    texts = {"0-breaks": "nice", "long": "long", "other": "x"}
    outcomes = run("faulty", texts, concurrency=2)
    assert kinds(outcomes) == {}
    assert executions(log) == Counter(dict.fromkeys(texts, 1))
    workers = {path.read_text().split()[0] for path in log.iterdir()}
    assert len(workers) == 2


def test_a_worker_that_dies_while_all_inputs_wait_costs_no_input(run, log):
    texts = {"0-deadly": "die later"} | fine(3)
    outcomes = run("faulty", texts, concurrency=4, rate="1/s")
    assert kinds(outcomes) == {}
    assert executions(log) == Counter(dict.fromkeys(texts, 1))


def test_a_step_that_cancels_itself_is_a_failure(run, log):
    texts = {"0-cancels": "cancel and return", "long": "long"}
    outcomes = run("faulty", texts)
    assert kinds(outcomes) == {"0-cancels": "failed"}
    assert outcomes["0-cancels"].error == "CancelledError"
    assert executions(log) == Counter(dict.fromkeys(texts, 1))


def test_failures_and_crashes_share_the_retries(run, log):
    outcomes = run("faulty", {"bad": "third exit"}, FailurePolicy(retries=2, timeout=60))
    assert (outcomes["bad"].kind, outcomes["bad"].attempts) == ("crashed", 3)
    assert executions(log) == {"bad": 3}


def test_the_input_that_blocks_the_event_loop_is_found(run, log):
    """The other one is not charged for the time that it could not run."""
    texts = {"blocks": "block until two", "other": "x"}
    outcomes = run("faulty", texts, FailurePolicy(retries=0, timeout=1), concurrency=2)
    assert kinds(outcomes) == {"blocks": "timeout"}
    assert "_act" in outcomes["blocks"].log
    assert executions(log) == {"blocks": 2, "other": 2}
    assert outcomes["other"].attempts == 2


def test_inputs_that_exceed_the_limit_only_together_are_ok(run):
    outcomes = run("computes", fine(6), FailurePolicy(retries=0, timeout=3), concurrency=6)
    assert kinds(outcomes) == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("forever", "RetryAfter: the service needs a pause of inf s. The longest pause is 3,600 s"),
        ("refuse", "Refused: 429"),
    ],
)
def test_a_refusal_with_any_content_is_an_outcome(run, text, reason):
    outcomes = run("faulty", {"bad": text, "other": "long"})
    assert kinds(outcomes) == {"bad": "failed"}
    assert outcomes["bad"].reason.startswith(reason)


def test_a_refusal_in_a_group_pauses_the_input(run, log):
    outcomes = run("faulty", {"busy": "group"}, FailurePolicy(retries=1, timeout=60))
    assert kinds(outcomes) == {}
    assert outcomes["busy"].attempts == 2


def test_an_error_after_the_cancellation_is_a_timeout(run, log):
    outcomes = run("faulty", {"slow": "wrap"}, FailurePolicy(retries=1, timeout=0.5))
    assert kinds(outcomes) == {"slow": "timeout"}
    assert executions(log) == {"slow": 1}
    assert "the request failed" in outcomes["slow"].traceback


def test_each_input_has_a_thread(run):
    """Each waits in a thread until 20 have one. asyncio has six threads with two cores."""
    assert kinds(run("in_threads", fine(20), concurrency=20)) == {}


def test_a_worker_whose_threads_hang_is_replaced(run, log):
    bad = {f"bad-{number}": "hang forever" for number in range(4)}
    texts = bad | {f"fine-{number}": "quick" for number in range(8)}
    policy = FailurePolicy(retries=0, timeout=1)
    outcomes = run("in_threads", texts, policy, concurrency=4)
    assert kinds(outcomes) == dict.fromkeys(bad, "timeout")
    workers = {path.read_text().split()[0] for path in log.iterdir()}
    assert len(workers) == 2


def test_a_class_whose_opening_hangs_is_opened_again_in_a_new_worker(run, log):
    policy = FailurePolicy(retries=0, timeout=1)
    outcomes = run("OpensSlowly", fine(4), policy, concurrency=2)
    assert kinds(outcomes) == {}
    assert {outcome.attempts for outcome in outcomes.values()} == {1}


def test_a_class_that_never_opens_ends_the_run_with_its_reason(run, monkeypatch):
    monkeypatch.setattr(isolated_executor, "_MAX_IDLE_PASSES", 1)
    policy = FailurePolicy(retries=0, timeout=0.5)
    with pytest.raises(WorkerError, match=r"was not opened or closed .*__aenter__.* after 0\.5 s"):
        run("OpensSlowly", fine(2), policy, always=True)


def test_settings_of_the_opening_stay_and_an_error_of_the_end_is_shown(tmp_path, monkeypatch):
    lines = []
    run_shard = engine.run_shard
    monkeypatch.setattr(
        engine, "run_shard", lambda shard, seen: run_shard(shard, seen, on_lines=lines.append)
    )
    (tmp_path / "in").mkdir()
    for name in "abcd":
        (tmp_path / "in" / name).write_text("x")
    run_job(
        tmp_path / "in", f"{STEPS}:Settings", tmp_path / "out",
        num_workers=1, cores=1, concurrency=2, policy=POLICY,
    )  # fmt: skip
    assert table(tmp_path)["found"].tolist() == ['["1", "2", 5000]'] * 4
    text = "\n".join(line for one in lines for line in one.lines)
    assert "WARNING: OSError: the results were not sent" in text


def test_a_standard_stream_that_an_input_closes_serves_the_others(run):
    texts = {"0-closes": "close", "bad": "raise"} | fine(4)
    outcomes = run("faulty", texts, concurrency=1)
    assert kinds(outcomes) == {"bad": "failed"}
    assert outcomes["bad"].log == "printed by bad\n"


def test_a_worker_with_too_many_open_files_is_replaced(run, log):
    texts = {f"{number:02d}": "open" for number in range(30)}
    assert kinds(run("faulty", texts, concurrency=2)) == {}
    workers = Counter(path.read_text().split()[0] for path in log.iterdir())
    assert max(workers.values()) <= 10
    assert executions(log) == Counter(dict.fromkeys(texts, 1))


@pytest.mark.parametrize("step", ["hoards", "hoards_without_waiting"])
def test_memory_that_short_inputs_leave_is_limited(run, log, tmp_path, step):
    """No input lasts as long as the interval of the watchdog. None of them is at fault."""
    texts = {f"{number:03d}": "x" for number in range(80)}
    policy = FailurePolicy(retries=0, timeout=60, memory_limit="200MB")
    concurrency = 4 if step == "hoards" else None
    assert kinds(run(step, texts, policy, concurrency=concurrency)) == {}
    workers = Counter(path.read_text().split()[0] for path in log.iterdir())
    assert len(workers) >= 2


def test_tasks_grow_with_the_concurrency_and_not_with_the_inputs(run, tmp_path):
    for inputs, concurrency in ((40, 4), (400, 4), (400, 8)):
        run("crowd", fine(inputs), concurrency=concurrency, force=True)
        most = pd.read_csv(tmp_path / "out" / "metadata.csv")["tasks"].max()
        # Each slot has a task, and a task for its input. The worker itself has three.
        assert concurrency < most <= 2 * concurrency + 3
