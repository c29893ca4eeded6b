"""Test collating sequences of different lengths."""

import math
import pickle
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
from harness.published import publish_rows
from torch.utils.data import DataLoader, default_collate

from batchmill import Padded, open_dataset, pad_collate


class Item(NamedTuple):
    name: str
    data: object
    label: int


def check(padded, rows, value=0):
    """Compare with manual padding."""
    assert isinstance(padded, Padded)
    longest = max(map(len, rows))
    assert padded.values.tolist() == [row + [value] * (longest - len(row)) for row in rows]
    assert padded.lengths.tolist() == [len(row) for row in rows]
    assert padded.mask.tolist() == [
        [column < len(row) for column in range(longest)] for row in rows
    ]
    assert (padded.lengths.dtype, padded.mask.dtype) == (torch.int64, torch.bool)


def test_tensors_are_padded_to_the_longest_of_the_batch():
    batch = [Item("a", torch.tensor([1.0, 2.0]), 0), Item("b", torch.tensor([3.0]), 1)]
    found = pad_collate(batch)
    assert isinstance(found, Item)
    check(found.data, [[1, 2], [3]])
    assert found.name == ("a", "b")
    assert found.label.tolist() == [0, 1]  # type: ignore[attr-defined]


def test_other_dimensions_are_not_padded():
    found = pad_collate([torch.ones(2, 3, 4), torch.ones(5, 3, 4)])
    assert found.values.shape == (2, 5, 3, 4)
    assert found.values.sum() == 7 * 12
    assert found.mask.shape == (2, 5)


def test_the_type_does_not_depend_on_the_batch():
    check(pad_collate([torch.tensor([1, 2]), torch.tensor([3, 4])]), [[1, 2], [3, 4]])
    check(pad_collate([torch.tensor([1, 2])]), [[1, 2]])
    assert pad_collate([torch.ones(0), torch.ones(0)]).values.shape == (2, 0)


def test_lists_of_numbers_are_sequences():
    check(pad_collate([[1, 2, 3], [4]]), [[1, 2, 3], [4]])
    check(pad_collate([[1], []]), [[1], []])
    assert pad_collate([[], []]).values.dtype == torch.int64
    assert pad_collate([[1], [0.5, 1]]).values.dtype == torch.float64
    assert pad_collate([[True], [False, True]]).values.dtype == torch.bool


def test_nested_sequences_are_padded():
    batch = [
        {"word": [1, 2], "pair": (torch.ones(1), 5), "array": np.ones((2, 2))},
        {"word": [3], "pair": (torch.ones(2), 6), "array": np.ones((1, 2))},
    ]
    found = pad_collate(batch)
    check(found["word"], [[1, 2], [3]])
    check(found["pair"][0], [[1], [1, 1]])
    assert found["pair"][1].tolist() == [5, 6]
    check(found["array"], [[[1, 1], [1, 1]], [[1, 1]]], [0, 0])
    check(pad_collate([[torch.ones(1), "a"], [torch.ones(2), "b"]])[0], [[1], [1, 1]])


@pytest.mark.parametrize(
    "batch",
    [
        [1, 2],
        [0.5, 1.5],
        ["a", "b"],
        [b"a", b"b"],
        [(1, "a"), (2, "b")],
        [{"a": 1}, {"a": 2}],
        [["a", "b"], ["c", "d"]],
        [torch.tensor(1), torch.tensor(2)],
        [np.float32(1), np.float32(2)],
        [Item("a", (1, 2), 3), Item("b", (4, 5), 6)],
    ],
)
def test_other_values_are_collated_as_usual(batch):
    found, expected = pad_collate(batch), default_collate(batch)
    assert repr(found) == repr(expected)
    assert type(found) is type(expected)


def test_the_padding_value_can_be_changed():
    collate = pickle.loads(pickle.dumps(partial(pad_collate, value=-1)))
    check(collate([torch.tensor([1, 2]), torch.tensor([3])]), [[1, 2], [3]], -1)
    check(collate([[1, 2], [3]]), [[1, 2], [3]], -1)
    assert pad_collate([torch.ones(1), torch.ones(2)], value=math.inf).values[0, 1] == math.inf


@pytest.mark.parametrize("value", [0.5, math.nan])
def test_a_padding_value_that_does_not_fit_the_type_is_rejected(value):
    with pytest.raises(ValueError, match=r"cannot pad tensors of torch\.int64"):
        pad_collate([[1], [1, 2]], value=value)


def test_numbers_of_several_types_get_a_common_type():
    found = pad_collate([torch.tensor([1], dtype=torch.uint8), torch.tensor([0.5, 2])])
    check(found, [[1], [0.5, 2]])


@pytest.mark.parametrize(
    "batch", [[torch.ones(2, 3), torch.ones(2, 4)], [torch.ones(2), torch.tensor(1)]]
)
def test_tensors_that_cannot_be_padded_are_rejected(batch):
    with pytest.raises(ValueError, match=r"of the shapes .* differ in more than their first"):
        pad_collate(batch)


def test_lists_of_text_of_different_lengths_are_rejected():
    with pytest.raises(ValueError, match="Encode the items as numbers"):
        pad_collate([["a"], ["b", "c"]])


def test_samples_of_a_dataset(tmp_path):
    files = {f"{word}.txt": word for word in ("simple", "scaleable", "pytorch")}
    dataset = open_dataset(publish_rows(tmp_path / "d", files), transform=codes)
    loader = DataLoader(dataset, batch_size=2, num_workers=2, collate_fn=pad_collate)
    first, last = loader
    check(first.data, [codes("simple"), codes("scaleable")])
    check(last.data, [codes("pytorch")])
    assert first.id == ("files/simple.txt", "files/scaleable.txt")


def codes(word):
    return [ord(letter) for letter in word]
