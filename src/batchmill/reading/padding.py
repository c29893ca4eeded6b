"""Collating what is of different lengths: sequences are padded to the longest of the batch."""

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map


class Padded(NamedTuple):
    """Sequences of one batch: B of them, the longest of T items.

    `values` is [B, T, ...], `lengths` [B] (int64), `mask` [B, T] (bool): true where a value is one
    of the sequence's own.
    """

    values: torch.Tensor
    lengths: torch.Tensor
    mask: torch.Tensor


def pad_collate(batch: Sequence[Any], *, value: float = 0) -> Any:
    """Collate as torch's `default_collate` does, but give each batch of sequences as `Padded`.

    Sequences are tensors and arrays with a dimension or more, padded with `value` in the first one,
    and lists of numbers; wherever they stand in NamedTuples, tuples and dicts. They become `Padded`
    even if all are of one length. Numbers, tensors without a dimension, and text stay as they are
    in `default_collate`. Another value: `functools.partial(pad_collate, value=-1)`.

    Raises ValueError for tensors that differ in more than their first dimension, and for a `value`
    that they cannot hold.
    """
    rules: dict[Any, Any] = {
        **default_collate_fn_map,
        torch.Tensor: partial(_pad_tensors, value=value),
        list: partial(_pad_lists, value=value),
    }
    return collate(batch, collate_fn_map=rules)


def _pad_tensors(batch: Sequence[torch.Tensor], *, value: float, collate_fn_map: Any = None) -> Any:
    first = batch[0]
    if first.is_nested or first.layout != torch.strided or all(item.dim() == 0 for item in batch):
        return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    if len({item.shape[1:] for item in batch}) > 1 or any(item.dim() == 0 for item in batch):
        shapes = ", ".join(sorted({str(list(item.shape)) for item in batch}))
        raise ValueError(
            f"pad_collate: tensors of the shapes {shapes} differ in more than their first "
            "dimension, which is the one that is padded. Bring that to the front in a transform "
            "(torch.t, for sound), or make the others equal."
        )
    kind = reduce(torch.promote_types, (item.dtype for item in batch))
    if not kind.is_floating_point and not kind.is_complex and not float(value).is_integer():
        raise ValueError(f"pad_collate: {value} cannot pad tensors of {kind}. Give a whole number.")
    values = pad_sequence([item.to(kind) for item in batch], batch_first=True, padding_value=value)
    lengths = torch.tensor([len(item) for item in batch])
    mask = torch.arange(values.shape[1]) < lengths[:, None]
    return Padded(values, lengths, mask)


def _pad_lists(batch: Sequence[list[Any]], *, value: float, collate_fn_map: Any) -> Any:
    """Pad lists of numbers; of others, collate the first items, the second ones, and so on."""
    kinds = {type(number) for item in batch for number in item}
    if kinds <= {int, float, bool}:
        # As default_collate has it: a Python float is one of 64 bits.
        kind = torch.float64 if float in kinds else torch.int64
        kind = torch.bool if kinds == {bool} else kind
        tensors = [torch.tensor(item, dtype=kind) for item in batch]
        return _pad_tensors(tensors, value=value)
    if len({len(item) for item in batch}) > 1:
        raise ValueError(
            "pad_collate: lists of different lengths are padded if they hold numbers, and these "
            "do not. Encode them as numbers, or make a tensor of each."
        )
    return [collate(items, collate_fn_map=collate_fn_map) for items in zip(*batch, strict=True)]
