"""Datasets as people write them for training, and what spawned workers import."""

import pickle
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import torch
from PIL import Image
from torch.utils.data import Dataset

import batchmill


class ImageFolder(Dataset):
    """A folder of images, all of one size."""

    def __init__(self, folder):
        self.paths = sorted(Path(folder).glob("*.png"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with Image.open(self.paths[index]) as image:
            pixels = np.array(image.convert("RGB"))
        return torch.from_numpy(pixels).permute(2, 0, 1).float() / 255


class Listed(Dataset):
    """The one of every tutorial: ids and labels by hand, one tensor a file."""

    def __init__(self, list_IDs, labels, folder):  # noqa: N803
        self.list_IDs = list_IDs
        self.labels = labels
        self.folder = folder

    def __len__(self):
        return len(self.list_IDs)

    def __getitem__(self, index):
        ID = self.list_IDs[index]  # noqa: N806
        return torch.load(f"{self.folder}/data/{ID}.pt"), self.labels[ID]


class Box(NamedTuple):
    corner: tuple[int, int]
    size: torch.Tensor


class Boxed(NamedTuple):
    name: str
    box: Box
    score: float


class Boxes(Dataset):
    """NamedTuples in NamedTuples, and tuples in those."""

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return Boxed(f"box {index}", Box((index, index + 1), torch.ones(2) * index), index / 2)


def encoded(word):
    """A word as a list of numbers."""
    return [ord(letter) - ord("a") + 1 for letter in word]


def pad_words(batch):
    """A collate function of a user's: words padded to the longest of the batch."""
    lengths = torch.tensor([len(word) for word in batch])
    words = torch.zeros(len(batch), int(lengths.max()), dtype=torch.int64)
    for row, word in enumerate(batch):
        words[row, : len(word)] = torch.tensor(word)
    return words, lengths


def keep(source, out):
    """A step whose output is its input."""
    shutil.copy(source, out / source.name)
    return {"output": source.name}


def name_of(path):
    """Opens nothing."""
    return path.name


class Trap:
    """Whoever unpickles one leaves a trace."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


def private_bytes():
    """The memory of this process that no file backs; of a mapped file, all have the same pages."""
    return sum(part.anonymous + part.swap for part in psutil.Process().memory_maps(grouped=False))


def growth_by_reading(pickled):
    """Unpickle a dataset (or list), look at all of its pages; return the bytes that this took."""
    assert batchmill.open_dataset  # Imports torch: that is not to be counted.
    before = private_bytes()
    dataset = pickle.loads(pickled)
    for index in range(0, len(dataset), 20):
        dataset[index]
    return private_bytes() - before


def forget(dataset):
    """In a fork: let go of what the parent owns."""
    dataset.__dict__.clear()


kept = []


def open_and_keep(folder):
    """Open a dataset until this process ends; return the path of its file."""
    kept.append(batchmill.open_dataset(folder, load=name_of))
    return where_mapped(kept[-1])


def where_mapped(dataset):
    """Return the path of the file that a dataset is read from."""
    return Path(dataset._table._path)
