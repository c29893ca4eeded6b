"""Torch Datasets and lists at module level, as inputs for models."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, random_split

from batchmill.steps.predict import PredictItems


class Numbers(Dataset):
    """Takes IDs and labels, as in many tutorials."""

    def __init__(self, list_IDs, labels):  # noqa: N803
        self.list_IDs = list_IDs
        self.labels = labels

    def __len__(self):
        return len(self.list_IDs)

    def __getitem__(self, index):
        return torch.full((2,), float(self.labels[self.list_IDs[index]]))


class Texts(Dataset):
    """Takes paths; pads encoded words to the longest word of the batch."""

    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return torch.tensor([*Path(self.paths[index]).read_bytes()], dtype=torch.float32)

    @staticmethod
    def collate_fn(samples):
        return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)


class Pair(NamedTuple):
    left: torch.Tensor
    inner: tuple


class Pairs(Dataset):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        return Pair(torch.tensor(float(index)), (torch.tensor(1.0), "name"))


def both(left, inner):
    """Add two fields of a batch, as a model."""
    return left + inner[0]


def both_model():
    return both


def maximum():
    return lambda batch: batch.max(1).values


numbers = Numbers(["a", "b", "c", "d", "e"], {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4})
parts = random_split(numbers, [0.6, 0.4], torch.Generator().manual_seed(1))

MEAN = {"model": "models:mean"}
by_ids = PredictItems(numbers, **MEAN)
a_list = PredictItems([torch.full((2,), float(n)) for n in range(5)], **MEAN)
concatenated = PredictItems(
    ConcatDataset([Subset(numbers, [0, 1]), Subset(numbers, [2, 3, 4])]), **MEAN
)
put_together = PredictItems(ConcatDataset(parts), **MEAN)
nested = PredictItems(Pairs(), model="samples:both_model")
