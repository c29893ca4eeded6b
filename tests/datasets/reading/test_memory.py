"""Test that pickles stay small, and that processes share one copy of the samples."""

import copy
import multiprocessing
import os
import pickle
import shutil
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

import pytest
from harness.published import publish_rows, texts
from readers import forget, growth_by_reading, name_of, open_and_keep, where_mapped
from torch.utils.data import DataLoader

from batchmill import OptionError, StoreError, open_dataset
from batchmill.core.storage.scratch import scratch_folder

ROWS = 1_000_000


@pytest.fixture
def folder(tmp_path):
    return publish_rows(tmp_path / "d", texts(7), label=list("abcabca"))


@contextmanager
def spawned():
    """Yield a caller that runs functions in a spawned process."""
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
def test_a_million_rows_use_no_memory_in_a_worker(tmp_path):
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
        # Control: a list of the same paths is copied into the process.
        assert call(growth_by_reading, pickle.dumps(names)) > size / 2
        path = call(open_and_keep, folder)
        assert path.exists()
    assert not path.parent.exists()  # Removed at the exit of the process that created it.
    assert where_mapped(dataset).exists()


@pytest.mark.parametrize(
    ("context", "workers"), [("fork", 2), pytest.param("spawn", 1, marks=pytest.mark.long)]
)
@pytest.mark.slow
def test_forked_and_spawned_workers_read_the_samples(folder, context, workers):
    dataset = open_dataset(folder, columns=["input"])
    loader = DataLoader(dataset, batch_size=3, num_workers=workers, multiprocessing_context=context)
    batches = list(loader)
    assert [len(batch.id) for batch in batches] == [3, 3, 1]
    assert [label for batch in batches for label in batch.label.tolist()] == [0, 1, 2, 0, 1, 2, 0]
    assert {type(batch) for batch in batches} == {type(dataset[0])}


def test_copies_in_one_process_share_the_file(folder):
    dataset = open_dataset(folder)
    path = where_mapped(dataset)
    twins = [pickle.loads(pickle.dumps(dataset)), copy.deepcopy(dataset)]
    del dataset
    assert {where_mapped(twin) for twin in twins} == {path}
    assert path.exists()
    assert pickle.loads(pickle.dumps(twins[0]))[6].data == "text 6"
    twins.clear()
    assert not path.parent.exists()


def test_a_fork_does_not_remove_the_file_of_its_parent(folder):
    dataset = open_dataset(folder)
    assert forked(forget, dataset) == 0
    assert where_mapped(dataset).exists()
    with scratch_folder():  # Removes folders without an owner.
        assert where_mapped(dataset).exists()


def test_a_missing_file_is_created_again(folder):
    dataset = open_dataset(folder, columns=["input"])
    expected, pickled, path = list(dataset), pickle.dumps(dataset), where_mapped(dataset)
    del dataset
    assert not path.exists()
    again = pickle.loads(pickled)
    assert list(again) == expected
    assert again.classes == ["a", "b", "c"]
    assert where_mapped(again) != path


def test_the_file_is_not_created_from_another_table(folder):
    dataset = open_dataset(folder)
    pickled = pickle.dumps(dataset)
    del dataset
    publish_rows(folder, texts(7), label=list("bcabcab"))
    with pytest.raises(OptionError, match="does not exist any more"):
        pickle.loads(pickled)


def test_a_failed_write_leaves_no_files(folder, tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    monkeypatch.setattr(
        "batchmill.datasets.reading.memory_mapped._NAME", "no such folder/samples.arrow"
    )
    with pytest.raises(StoreError, match="TMPDIR"):
        open_dataset(folder)
    assert os.listdir(scratch) == []
    shutil.rmtree(scratch)
