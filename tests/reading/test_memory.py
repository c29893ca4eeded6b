"""However many samples there are: what is pickled is small, and no process has its own copy."""

import copy
import multiprocessing
import os
import pickle
import shutil
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

import pytest
from published import publish_rows, texts
from readers import forget, growth_by_reading, name_of, open_and_keep, where_mapped
from torch.utils.data import DataLoader

from batchmill import OptionError, StoreError, open_dataset
from batchmill.storage.scratch import scratch_folder

ROWS = 1_000_000


@pytest.fixture
def folder(tmp_path):
    return publish_rows(tmp_path / "d", texts(7), label=list("abcabca"))


@contextmanager
def spawned():
    """A process that has inherited nothing: calls functions."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result()


def forked(function, *arguments):
    """Call a function in a fork, and return its exit code."""
    process = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    process.start()
    process.join()
    return process.exitcode


@pytest.mark.long
def test_a_million_rows_cost_a_worker_nothing(tmp_path):
    names = [f"files/recording-{number:012}/clip.wav" for number in range(ROWS)]
    labels = [f"label {number % 50_000}" for number in range(ROWS)]
    folder = publish_rows(tmp_path / "d", output=names, label=labels)
    dataset = open_dataset(folder, load=name_of, columns=["input"])
    pickled = pickle.dumps(dataset)
    assert len(pickled) < 4096
    size = where_mapped(dataset).stat().st_size
    assert size > 60 * ROWS
    with spawned() as call:
        assert call(growth_by_reading, pickled) < size / 5
        # The measure is right: a list of the same paths has a copy there.
        assert call(growth_by_reading, pickle.dumps(names)) > size / 2
        path = call(open_and_keep, folder)
        assert path.exists()
    assert not path.parent.exists()  # Gone with the process that made it.
    assert where_mapped(dataset).exists()


@pytest.mark.parametrize(("context", "workers"), [("fork", 2), ("spawn", 1)])
@pytest.mark.slow
def test_workers_of_each_kind_read_it(folder, context, workers):
    dataset = open_dataset(folder, columns=["input"])
    loader = DataLoader(dataset, batch_size=3, num_workers=workers, multiprocessing_context=context)
    batches = list(loader)
    assert [len(batch.id) for batch in batches] == [3, 3, 1]
    assert [label for batch in batches for label in batch.label.tolist()] == [0, 1, 2, 0, 1, 2, 0]
    assert {type(batch) for batch in batches} == {type(dataset[0])}


def test_within_a_process_there_is_one_file(folder):
    dataset = open_dataset(folder)
    path = where_mapped(dataset)
    twins = [pickle.loads(pickle.dumps(dataset)), copy.deepcopy(dataset)]
    del dataset
    assert {where_mapped(twin) for twin in twins} == {path}
    assert path.exists()
    assert pickle.loads(pickle.dumps(twins[0]))[6].data == "text 6"
    twins.clear()
    assert not path.parent.exists()


def test_a_fork_leaves_the_file_to_its_parent(folder):
    dataset = open_dataset(folder)
    assert forked(forget, dataset) == 0
    assert where_mapped(dataset).exists()
    with scratch_folder():  # Sweeps up what nobody holds.
        assert where_mapped(dataset).exists()


def test_where_the_file_is_not_there_it_is_made_again(folder):
    dataset = open_dataset(folder, columns=["input"])
    expected, pickled, path = list(dataset), pickle.dumps(dataset), where_mapped(dataset)
    del dataset
    assert not path.exists()
    again = pickle.loads(pickled)
    assert list(again) == expected
    assert again.classes == ["a", "b", "c"]
    assert where_mapped(again) != path


def test_it_is_made_again_from_the_same_table_only(folder):
    dataset = open_dataset(folder)
    pickled = pickle.dumps(dataset)
    del dataset
    publish_rows(folder, texts(7), label=list("bcabcab"))
    with pytest.raises(OptionError, match="has changed since it was opened"):
        pickle.loads(pickled)


def test_nothing_is_left_of_a_table_that_cannot_be_written(folder, tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    monkeypatch.setattr("batchmill.reading.mapped._NAME", "no such folder/samples.arrow")
    with pytest.raises(StoreError, match="TMPDIR"):
        open_dataset(folder)
    assert os.listdir(scratch) == []
    shutil.rmtree(scratch)
