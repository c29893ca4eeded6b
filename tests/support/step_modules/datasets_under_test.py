"""Typical torch Datasets, and torch's combinations of them. Tests refer to them by name.

They read their data from the working directory, as such code usually does.
"""

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, random_split


class Pictures(Dataset):
    """Takes a list of paths; a sample is a dict."""

    def __init__(self, paths, scale=1.0):
        self.paths = paths
        self.scale = scale

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with Image.open(self.paths[index]) as image:
            pixels = torch.from_numpy(np.array(image.convert("RGB"))).float()
        return {"mean": pixels.mean(dim=(0, 1)) * self.scale, "size": tuple(pixels.shape[:2])}


class Saved(Dataset):
    """The Dataset of many tutorials: tensors by ID, and labels."""

    def __init__(self, list_IDs, labels):  # noqa: N803
        self.labels = labels
        self.list_IDs = list_IDs

    def __len__(self):
        return len(self.list_IDs)

    def __getitem__(self, index):
        ID = self.list_IDs[index]  # noqa: N806
        X = torch.load("data/" + ID + ".pt")  # noqa: N806
        y = self.labels[ID]
        return X, y


class SavedByPath(Saved):
    """The same, with the paths from batchmill."""

    def __init__(self, inputs, labels):
        super().__init__(
            [Path(path).stem for path in inputs],
            {Path(path).stem: label for path, label in labels.items()},
        )


class Point(NamedTuple):
    x: float
    y: float


class Sample(NamedTuple):
    name: str
    box: tuple[Point, Point]
    shape: tuple[int, tuple[int, int]]
    weights: torch.Tensor


class Samples(Dataset):
    def __init__(self, names):
        self.names = names

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        corner = Point(index, index + 0.5)
        return Sample(self.names[index], (corner, corner), (1, (2, 3)), torch.ones(2) * index)


class Stream(IterableDataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __iter__(self):
        return iter(self.paths)


class NoLength(Dataset):
    def __getitem__(self, index):
        return index


class BrokenLength(Samples):
    def __len__(self):
        raise RuntimeError("not known yet")


def _rows():
    try:
        with open("data.csv", newline="") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        return []


ids = [Path(row["input"]).stem for row in _rows()]
saved = Saved(ids, {Path(row["input"]).stem: int(row["label"]) for row in _rows()})

samples = Samples(["a", "b", "c", "d", "e"])
subset = Subset(samples, [4, 2, 0])
joined = ConcatDataset([subset, Samples(["f", "g"])])
part, other_part = random_split(samples, [3, 2], torch.Generator().manual_seed(7))
no_length = NoLength()
broken_length = BrokenLength([])
stream = Stream(["a"])
