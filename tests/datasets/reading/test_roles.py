"""Test the samples of batchmill together with torch Datasets of users."""

import shutil

import numpy as np
import pytest
import torch
from harness.jobs import run_job
from harness.published import publish_rows, texts
from PIL import Image
from readers import Boxes, ImageFolder, Listed, encoded, pad_words
from torch.utils.data import ConcatDataset, DataLoader, Subset, WeightedRandomSampler, random_split

from batchmill import open_dataset, pad_collate

WORDS = ["simple", "scaleable", "preprocessing", "pytorch", "dataset"]


@pytest.fixture
def tensors(tmp_path):
    """Return a dataset of ten tensors, which a run made from files `data/ID.pt`."""
    folder = tmp_path / "in" / "data"
    folder.mkdir(parents=True)
    lines = ["input,label,partition"]
    for number in range(10):
        torch.save(torch.full((2,), float(number)), folder / f"id-{number}.pt")
        partition = "validation" if number % 5 == 4 else "train"
        lines.append(f"data/id-{number}.pt,{number % 2},{partition}")
    (tmp_path / "in" / "m.csv").write_text("\n".join(lines))
    run_job(tmp_path / "in" / "m.csv", "readers:keep", tmp_path / "out")
    return tmp_path / "out"


def test_an_image_dataset_reads_like_an_image_folder(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(5):
        Image.fromarray(np.full((4, 6, 3), number * 50, "uint8")).save(folder / f"{number}.png")
    run_job(folder, "readers:keep", tmp_path / "out")
    flat = tmp_path / "flat"
    flat.mkdir()
    for path in (tmp_path / "out" / "files").rglob("*.png"):
        shutil.copy(path, flat)
    theirs = list(DataLoader(ImageFolder(flat), batch_size=2, num_workers=2))
    ours = list(DataLoader(open_dataset(tmp_path / "out"), batch_size=2, num_workers=2))
    assert [tuple(batch.shape) for batch in theirs] == [(2, 3, 4, 6), (2, 3, 4, 6), (1, 3, 4, 6)]
    for batch, mine in zip(theirs, ours, strict=True):
        assert torch.equal(batch, mine.data / 255)


def test_a_list_is_a_torch_dataset():
    batches = list(DataLoader(WORDS, batch_size=2, num_workers=2))
    assert batches == [WORDS[:2], WORDS[2:4], WORDS[4:]]


def test_ids_and_labels_work_with_a_users_torch_dataset(tensors, tmp_path):
    dataset = open_dataset(tensors)
    names = {key: key.rpartition("/")[2].removesuffix(".pt") for key in dataset.labels}
    labels = {names[key]: label for key, label in dataset.labels.items()}
    partition = {key: [names[i] for i in ids] for key, ids in dataset.partition.items()}
    assert {key: len(ids) for key, ids in partition.items()} == {"train": 8, "validation": 2}
    theirs = Listed(partition["train"], labels, tmp_path / "in")
    ours = open_dataset(tensors, partition="train")
    for (data, label), sample in zip(theirs, ours, strict=True):
        assert torch.equal(data, sample.data)
        assert label == sample.label


def test_ids_are_paths_within_the_dataset(tensors):
    dataset = open_dataset(tensors)
    for name in dataset.partition["validation"]:
        assert torch.load(tensors / name)[0] % 2 == dataset.labels[name]


def test_nested_named_tuples():
    first, second, last = DataLoader(Boxes(), batch_size=2)
    assert first.name == ["box 0", "box 1"] or first.name == ("box 0", "box 1")
    assert [part.tolist() for part in second.box.corner] == [[2, 3], [3, 4]]
    assert last.box.size.tolist() == [[4, 4]]
    assert last.score.tolist() == [2]


@pytest.mark.parametrize("collate", [pad_words, pad_collate])
def test_encoded_words_are_padded_to_the_longest_of_the_batch(collate):
    words = [encoded(word) for word in WORDS]
    batches = list(DataLoader(words, batch_size=2, num_workers=2, collate_fn=collate))
    assert [tuple(batch[0].shape) for batch in batches] == [(2, 9), (2, 13), (1, 7)]
    found = [
        row[:length].tolist() for batch in batches for row, length in zip(*batch[:2], strict=True)
    ]
    assert found == words


@pytest.mark.filterwarnings("ignore:This DataLoader will create 6 worker processes")
def test_samples_in_shuffled_batches_with_a_smaller_last_batch(tmp_path):
    dataset = open_dataset(publish_rows(tmp_path / "d", texts(100), label=list(range(100))))
    loader = DataLoader(dataset, batch_size=64, shuffle=True, num_workers=6)
    batches = list(loader)
    assert [len(batch.id) for batch in batches] == [64, 36]
    labels = [label for batch in batches for label in batch.label.tolist()]
    assert sorted(labels) == list(range(100))
    assert labels != sorted(labels)
    found = [text for batch in batches for text in batch.data]
    assert found == [f"text {label}" for label in labels]


def test_samples_in_subsets_and_concatenated(tensors):
    dataset = open_dataset(tensors)
    numbers = list(range(10))
    both = dataset + open_dataset(tensors, partition="validation")
    assert isinstance(both, ConcatDataset)
    assert first_numbers(both) == [*numbers, 4, 9]
    assert first_numbers(ConcatDataset([dataset, dataset])) == numbers * 2
    assert first_numbers(Subset(dataset, [7, 3])) == [7, 3]
    train, test = random_split(dataset, [0.8, 0.2], torch.Generator().manual_seed(1))
    assert sorted(first_numbers(train) + first_numbers(test)) == numbers


def first_numbers(dataset):
    loader = DataLoader(dataset, batch_size=4, num_workers=2)
    return [number for batch in loader for number in batch.data[:, 0].tolist()]


def test_samples_with_a_weighted_sampler(tensors):
    dataset = open_dataset(tensors)
    weights = (dataset.frame["label"] == 1).astype(float)
    sampler = WeightedRandomSampler(weights.tolist(), 20)
    batches = list(DataLoader(dataset, batch_size=8, sampler=sampler))
    assert {label for batch in batches for label in batch.label.tolist()} == {1}
    assert sum(len(batch.id) for batch in batches) == 20
