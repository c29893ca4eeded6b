"""Workers share the inputs of a DataLoader."""

import os
from contextlib import closing
from itertools import pairwise
from types import SimpleNamespace

import pytest

from batchmill.runs.workers import input_feed
from batchmill.runs.workers.input_feed import Feed, SharedTurns
from batchmill.runs.workers.inputs_in_progress import InputTable
from batchmill.runs.workers.stop_flags import SharedFlag

INPUTS = 5_000


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_each_input_is_taken_once(workers, tmp_path):
    started = SharedFlag()
    with closing(SharedTurns(INPUTS)) as turns:
        turns.put([(index, index / 2) for index in range(INPUTS)], first=False)
        children = []
        for number in range(workers):
            child = os.fork()
            if not child:
                started.wait()
                taken = []
                while found := turns.take(3):
                    taken += [index for index, at in found if at == index / 2]
                (tmp_path / str(number)).write_text("\n".join(map(str, taken)))
                os._exit(0)
            children.append(child)
        started.set()
        for child in children:
            assert os.waitpid(child, 0)[1] == 0
        assert not turns.left
    taken = " ".join(file.read_text() for file in tmp_path.iterdir()).split()
    assert sorted(map(int, taken)) == list(range(INPUTS))


def test_more_turns_than_the_capacity_follow_each_other():
    with closing(SharedTurns(4)) as turns:
        for first in range(0, 40, 4):
            turns.put([(first, 0.0), (first + 1, 0.0), (first + 2, 1.0)], first=False)
            assert turns.take(2) == [(first, 0.0), (first + 1, 0.0)]
            turns.put([(first + 3, 1.5)], first=True)
            assert turns.take(9) == [(first + 3, 1.5), (first + 2, 1.0)]
            assert turns.take() == []


def test_turns_do_not_add_up_while_all_workers_are_busy(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(input_feed, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    table = InputTable(8, 0)
    feed = Feed(table, pace_seconds=1.0)
    feed.begin(table.give(0.0, 2).indices)
    with closing(feed.turns) as turns:
        begun = []
        for second in range(50):
            clock[0] = float(second)
            feed.advance()
            if second >= 20:
                begun += turns.take(8)
            assert turns.left <= 1
    assert [index for index, _ in begun] == [*range(8)]
    times = [at for _, at in begun]
    assert all(later - earlier >= 1 for earlier, later in pairwise(times[1:]))
