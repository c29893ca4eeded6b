"""The rules of the table that owns the inputs in progress, without processes and without a clock.

The state machine plays random passes with workers that end and pauses. It records the executions of
each input, and checks the decisions of the table.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from batchmill.core.outcome import LONGEST_RETRY_AFTER, Outcome
from batchmill.runs.workers.inputs_in_progress import History, InputTable

OK = Outcome("a", "a", "ok", 1, 0.0, 0.0, "here")
FAILED = OK._replace(kind="failed")
COUNT, RETRIES = 6, 2


def test_retries_are_given_in_order():
    """In another order, 7, 3 and 9 would look like 7 to 9, and input 8 would run again."""
    table = InputTable(10, 1)
    table.largest = 3
    table.give(0.0, 1)
    for index in (7, 3, 9):
        assert table.ended(index, FAILED, 0.0) is None
    for index in {*range(10)} - {7, 3, 9}:
        assert table.ended(index, OK, 0.0) == OK
    table.give_back()
    assert table.due_in(0.0) == 0.5
    assert table.give(0.5, 1).indices == [3, 7, 9]


def test_the_pause_of_a_retry_grows_and_is_at_least_that_of_the_step():
    table = InputTable(1, 9)
    table.give(0.0, 1)
    table.ended(0, FAILED, 0.0)
    assert table.give_due(0.4) == []
    assert table.give_due(0.5) == [0]
    table.ended(0, FAILED, 1.0)
    assert table.give_due(1.9) == []
    assert table.give_due(2.0) == [0]
    table.ended(0, FAILED._replace(retry_after=100.0), 2.0)
    assert table.give_due(101.9) == []
    assert table.give_due(102.0) == [0]


def test_an_input_that_would_pause_for_too_long_is_not_retried():
    table = InputTable(2, 1)
    table.give(0.0, 1)
    assert table.ended(0, FAILED._replace(retry_after=LONGEST_RETRY_AFTER), 0.0) is None
    for_ever = FAILED._replace(retry_after=float("inf"))
    assert table.ended(1, for_ever, 0.0) == for_ever


def test_a_pause_outlives_a_worker_and_a_shard():
    table = InputTable(3, 1)
    table.give(0.0, 1)
    table.ended(0, FAILED._replace(retry_after=20.0), 0.0)
    assert table.worker_lost([1]) == 1
    table.ended(1, FAILED._replace(kind="crashed"), 1.0)
    table.give_back()
    again = InputTable(3, 1)
    again.resume(table.unfinished())
    for one in (table, again):
        assert one.give(1.0, 1).indices == [2]
        one.ended(2, OK, 1.0)
        one.give_back()
        work = one.give(1.5, 1)
        assert (work.indices, work.alone) == ([1], True)
        one.ended(1, OK, 2.0)
        one.give_back()
        assert one.due_in(2.0) == 18.0
        assert one.give(20.0, 1).indices == [0]
        assert one.ended(0, FAILED, 20.0).attempts == 2


def test_an_input_that_did_not_begin_cannot_have_ended_its_worker():
    table = InputTable(3, 0)
    table.give(0.0, 2)
    assert table.worker_lost([]) is None
    table.give_back()
    work = table.give(0.0, 2)
    assert (work.indices, work.alone) == ([0, 1, 2], False)
    assert table.ended(0, OK, 0.0).attempts == 1


def test_the_only_input_that_had_begun_has_ended_its_worker():
    table = InputTable(3, 0)
    table.give(0.0, 1)
    assert table.worker_lost([1]) == 1
    assert table.ended(1, FAILED._replace(kind="crashed"), 0.0).attempts == 1


def test_suspects_run_alone_at_the_end_and_both_attempts_count_for_the_cause():
    table = InputTable(4, 1)
    table.give(0.0, 2)
    assert table.worker_lost([0, 1]) is None
    assert table.ended(0, OK, 0.0) is None, "it is late: its worker is lost"
    table.give_back()
    assert table.give(0.0, 2).indices == [2, 3]
    for index in (2, 3):
        table.ended(index, OK, 0.0)
    assert table.pass_is_over(0.0)
    table.give_back()
    work = table.give(0.0, 2)
    assert (work.indices, work.num_workers, work.alone) == ([0, 1], 1, True)
    assert table.ended(0, OK, 0.0).attempts == 2
    assert table.worker_lost([1]) == 1
    assert table.ended(1, FAILED._replace(kind="crashed"), 0.0).attempts == 2


def test_an_overdue_input_runs_again_alone_and_those_beside_it_beside_others():
    table = InputTable(3, 0)
    table.give(0.0, 1)
    assert table.worker_lost([0, 1], cause=0) is None, "the other one may have taken the time"
    table.give_back()
    work = table.give(0.0, 1)
    assert (work.indices, work.alone) == ([1, 2], False)
    assert table.ended(1, FAILED, 0.0).attempts == 2
    table.ended(2, OK, 0.0)
    table.give_back()
    assert table.give(0.0, 1).alone
    assert table.worker_lost([0], cause=0) == 0
    assert table.ended(0, FAILED._replace(kind="timeout"), 0.0).attempts == 2


def test_an_unclear_attempt_is_repeated_alone_and_uses_no_retry():
    table = InputTable(2, 0)
    table.give(0.0, 1)
    timeout = FAILED._replace(kind="timeout")
    assert table.ended(0, timeout._replace(unclear=True), 0.0) is None
    table.ended(1, OK, 0.0)
    assert table.pass_is_over(0.0)
    table.give_back()
    assert table.give(0.0, 1).alone
    assert table.ended(0, timeout, 0.0).attempts == 2


def test_divided_batches_come_first_and_the_largest_before_the_others():
    table = InputTable(8, 0)
    table.largest = 4
    table.give(0.0, 1)
    table.divide([0, 1], 1)
    table.divide([4, 5], 2)
    table.give_back()
    assert table.give(0.0, 1)[:2] == ([4, 5], 2)
    table.give_back()
    assert table.give(0.0, 1)[:2] == ([0, 1], 1)
    table.give_back()
    assert table.give(0.0, 1)[:2] == (list(range(8)), 4)


def test_the_last_inputs_that_no_worker_has_taken_can_be_left_out():
    table = InputTable(6, 1)
    table.give(0.0, 1)
    table.ended(0, OK, 0.0)
    assert table.leave_out({2, 4, 5}) == 4
    assert not table.pass_is_over(0.0)
    for index in (1, 2, 3):
        table.ended(index, OK, 0.0)
    assert table.pass_is_over(0.0)
    assert not len(table)
    assert table.ended(4, OK, 0.0) is None


def test_an_input_that_was_executed_is_not_left_out():
    table = InputTable(4, 1)
    assert table.leave_out(()) == 1, "nothing was given, but the first input stays"
    table = InputTable(4, 1)
    table.give(0.0, 1)
    table.ended(2, FAILED, 0.0)
    assert table.leave_out({3}) == 3


class Passes(RuleBasedStateMachine):
    """Random passes. `executions` counts what workers began, and `faults` an input's own faults."""

    begun = Bundle("begun")

    def __init__(self):
        super().__init__()
        self.table = InputTable(COUNT, RETRIES)
        self.table.largest = 2
        self.now = 0.0
        self.given, self.at_work, self.alone = set(), set(), False
        self.executions, self.faults = [0] * COUNT, [0] * COUNT
        self.due = [0.0] * COUNT
        self.final = {}

    @rule(seconds=st.sampled_from([0.1, 1.0, 40.0]))
    def wait(self, seconds):
        self.now += seconds

    @precondition(lambda self: not self.at_work)
    @rule()
    def begin_pass(self):
        self.table.give_back()
        self.given = set()
        if not len(self.table):
            return
        pause = self.table.due_in(self.now)
        assert pause == max(0.0, min(self.due[i] for i in self.open()) - self.now)
        if pause:
            return
        work = self.table.give(self.now, 2)
        assert work.indices
        self.given, self.alone = set(work.indices), work.alone
        assert work.num_workers == (1 if work.alone else 2)

    @rule()
    def join(self):
        joined = self.table.give_due(self.now)
        assert joined == sorted(joined)
        assert not (joined and self.alone)
        assert not self.given & set(joined)
        self.given |= set(joined)

    @rule(data=st.data())
    def begin(self, data):
        ready = sorted(self.given - self.at_work)
        if not ready or (self.alone and self.at_work):
            return
        index = data.draw(st.sampled_from(ready))
        assert self.due[index] <= self.now, "its pause is not over"
        assert index not in self.final
        self.at_work.add(index)
        self.executions[index] += 1

    @rule(data=st.data(), kind=st.sampled_from(["ok", "failed", "oom", "timeout", "missing"]))
    def end(self, data, kind):
        if not self.at_work:
            return
        index = data.draw(st.sampled_from(sorted(self.at_work)))
        self.leave({index})
        self.faults[index] += kind != "ok"
        attempts = 0 if kind == "missing" else 1
        outcome = OK._replace(
            kind=kind, attempts=attempts, retry_after=data.draw(st.sampled_from([0.0, 9.0]))
        )
        self.settle(index, self.table.ended(index, outcome, self.now), outcome)

    @rule(data=st.data())
    def end_unclear(self, data):
        if not self.at_work or self.alone:
            return
        index = data.draw(st.sampled_from(sorted(self.at_work)))
        self.leave({index})
        outcome = OK._replace(kind="timeout", unclear=True)
        assert self.table.ended(index, outcome, self.now) is None
        self.due[index] = self.now

    @rule(data=st.data())
    def lose_worker(self, data):
        lost = set(data.draw(st.lists(st.sampled_from(range(COUNT))))) & self.at_work
        known = data.draw(st.sampled_from([None, *sorted(lost)]))
        cause = self.table.worker_lost(sorted(lost), known)
        assert cause == (min(lost) if len(lost) == 1 else None)
        self.leave(lost)
        for index in lost - {cause}:
            self.due[index] = 0.0
        if cause is not None:
            self.faults[cause] += 1
            outcome = OK._replace(kind="crashed")
            self.settle(cause, self.table.ended(cause, outcome, self.now), outcome)

    def settle(self, index, final, outcome):
        if final is None:
            assert outcome.kind in ("failed", "oom", "crashed")
            assert self.faults[index] <= RETRIES
            # Each fault doubles the pause, also one that was only suspected before.
            pause = 0.5 * 2.0 ** (self.table.unfinished()[index].faults - 1)
            self.due[index] = self.now + max(pause, outcome.retry_after)
            return
        assert index not in self.final
        if outcome.kind == "missing":
            assert final.attempts == 0
        else:
            assert final.attempts == self.executions[index]
        self.final[index] = final

    def leave(self, indices):
        self.at_work -= indices
        self.given -= indices

    def open(self):
        return [index for index in range(COUNT) if index not in self.final]

    @invariant()
    def every_input_has_one_owner(self):
        assert len(self.table) == COUNT - len(self.final)
        assert set(self.table.unfinished()) <= set(self.open())

    @invariant()
    def no_input_is_charged_for_others(self):
        for index, final in self.final.items():
            if final.kind != "ok":
                assert self.faults[index] >= 1


Passes.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestPasses = Passes.TestCase


@pytest.mark.parametrize("history", [History(1, 2, 3, 4.0, alone=True, batch=5)])
def test_a_history_is_plain(history):
    """A shard records it as JSON."""
    from dataclasses import astuple

    assert History(*astuple(history)) == history
