"""Workers share the batches of a DataLoader."""

import os
from contextlib import closing

import pytest

from batchmill.workers.control import SharedBatches, SharedFlag

BATCHES = 5_000


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_each_batch_is_taken_once(workers, tmp_path):
    started = SharedFlag()
    with closing(SharedBatches([[index] for index in range(BATCHES)], workers)) as batches:
        children = []
        for number in range(workers):
            child = os.fork()
            if not child:
                started.wait()
                taken = []
                while batch := batches.take():
                    taken.extend(batch)
                (tmp_path / str(number)).write_text("\n".join(map(str, taken)))
                os._exit(0)
            children.append(child)
        started.set()
        for child in children:
            assert os.waitpid(child, 0)[1] == 0
        assert not batches.left
    taken = " ".join(file.read_text() for file in tmp_path.iterdir()).split()
    assert sorted(map(int, taken)) == list(range(BATCHES))
