"""Copies batches to a device, and results back to main memory."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only


class Copies:
    """Copies to a device, and waits for each copy back."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def to_device(self, batch: Any) -> Any:
        """Return a batch, with its tensors on the device."""
        return tree_map_only(torch.Tensor, lambda tensor: tensor.to(self._device), batch)

    def to_memory(self, output: Any) -> tuple[Any, Callable[[], None]]:
        """Return an output with its tensors in main memory, and a function that waits for them."""
        return tree_map_only(torch.Tensor, torch.Tensor.cpu, output), lambda: None


class CudaCopies(Copies):
    """Copies to a GPU in a stream of their own, while the GPU computes, and waits for nothing.

    The copy of a batch is only faster if its tensors are in page-locked memory.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def to_device(self, batch: Any) -> Any:
        """Return a batch, with its tensors on the GPU. Only the GPU waits for the copy."""
        current = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            moved = _begin_copy(batch, self._device)
        current.wait_stream(self._stream)
        # Otherwise, the next copy could use the memory of a batch that the model still reads.
        tree_map_only(torch.Tensor, lambda tensor: tensor.record_stream(current), moved)
        return moved

    def to_memory(self, output: Any) -> tuple[Any, Callable[[], None]]:
        """Return an output, and a function that waits until its tensors are in main memory."""
        copied = _begin_copy(output, torch.device("cpu"))
        done: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record(torch.cuda.current_stream(self._device))
        return copied, done.synchronize


def copies_of(device: torch.device) -> Copies:
    """Return the fastest way to copy to and from a device."""
    return CudaCopies(device) if device.type == "cuda" else Copies(device)


def _begin_copy(value: Any, device: torch.device) -> Any:
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to(device, non_blocking=True), value)
