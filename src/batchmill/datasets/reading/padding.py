"""Collate sequences of different lengths by padding them to the longest of the batch."""

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map


class Padded(NamedTuple):
    """A batch of B sequences. The longest has T items.

    Attributes:
        values: The padded sequences, [B, T, ...].
        lengths: The length of each sequence, [B] (int64).
        mask: True for values, False for padding, [B, T] (bool).
    """

    values: torch.Tensor
    lengths: torch.Tensor
    mask: torch.Tensor


def pad_collate(batch: Sequence[Any], *, value: float = 0) -> Any:
    """Collate like torch's `default_collate`, but return each batch of sequences as `Padded`.

    Sequences are lists of numbers, and tensors and arrays with at least one dimension. They may be
    nested in NamedTuples, tuples and dicts. They become `Padded` even if all have the same length.
    Numbers, text and tensors without a dimension are collated as in `default_collate`.

    Args:
        batch: The samples.
        value: The padding. To change it: `functools.partial(pad_collate, value=-1)`.

    Returns:
        The collated batch. Tensors are padded in their first dimension.

    Raises:
        ValueError: Tensors differ in more than their first dimension, or cannot hold `value`.
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
            "dimension, but only the first is padded. Move the differing dimension to the front in "
            "a transform (for sound: torch.t), or make the others equal."
        )
    kind = reduce(torch.promote_types, (item.dtype for item in batch))
    if not kind.is_floating_point and not kind.is_complex and not float(value).is_integer():
        raise ValueError(f"pad_collate: {value} cannot pad tensors of {kind}. Give a whole number.")
    values = pad_sequence([item.to(kind) for item in batch], batch_first=True, padding_value=value)
    lengths = torch.tensor([len(item) for item in batch])
    mask = torch.arange(values.shape[1]) < lengths[:, None]
    return Padded(values, lengths, mask)


def _pad_lists(batch: Sequence[list[Any]], *, value: float, collate_fn_map: Any) -> Any:
    """Pad lists of numbers. For other lists, collate items by their position."""
    kinds = {type(number) for item in batch for number in item}
    if kinds <= {int, float, bool}:
        # A Python float has 64 bits, as in default_collate.
        kind = torch.float64 if float in kinds else torch.int64
        kind = torch.bool if kinds == {bool} else kind
        tensors = [torch.tensor(item, dtype=kind) for item in batch]
        return _pad_tensors(tensors, value=value)
    if len({len(item) for item in batch}) > 1:
        raise ValueError(
            "pad_collate: lists of different lengths can be padded only if they hold numbers. "
            "Encode the items as numbers, or convert each list to a tensor."
        )
    return [collate(items, collate_fn_map=collate_fn_map) for items in zip(*batch, strict=True)]
