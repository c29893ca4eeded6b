"""Typical torch Datasets for training, and functions that spawned workers import."""

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
    """The Dataset of many tutorials: lists of ids and labels, one tensor per file."""

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
    """Samples are NamedTuples that contain NamedTuples and tuples."""

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return Boxed(f"box {index}", Box((index, index + 1), torch.ones(2) * index), index / 2)


def encoded(word):
    """Return a word as a list of numbers."""
    return [ord(letter) - ord("a") + 1 for letter in word]


def pad_words(batch):
    """Pad words to the longest word of the batch, as a user's collate function."""
    lengths = torch.tensor([len(word) for word in batch])
    words = torch.zeros(len(batch), int(lengths.max()), dtype=torch.int64)
    for row, word in enumerate(batch):
        words[row, : len(word)] = torch.tensor(word)
    return words, lengths


def keep(source, out):
    """Copy the input to the output."""
    shutil.copy(source, out / source.name)
    return {"output": source.name}


def name_of(path):
    """Return the name of a file without opening the file."""
    return path.name


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


def private_bytes():
    """Return the memory of this process in bytes, without mapped files, which processes share."""
    return sum(part.anonymous + part.swap for part in psutil.Process().memory_maps(grouped=False))


def growth_by_reading(pickled):
    """Unpickle a dataset or list, read all its pages; return the growth of memory in bytes."""
    assert batchmill.open_dataset  # Imports torch, which must not count.
    before = private_bytes()
    dataset = pickle.loads(pickled)
    for index in range(0, len(dataset), 20):
        dataset[index]
    return private_bytes() - before


def forget(dataset):
    """In a fork: drop all attributes, which the parent owns."""
    dataset.__dict__.clear()


kept = []


def open_and_keep(folder):
    """Open a dataset until the process ends; return the path of its mapped file."""
    kept.append(batchmill.open_dataset(folder, load=name_of))
    return where_mapped(kept[-1])


def where_mapped(dataset):
    """Return the path of the mapped file of a dataset."""
    return Path(dataset._table._path)
