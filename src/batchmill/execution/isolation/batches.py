"""Batches of samples, on their way from DataLoader workers to the process that runs the shard.

A sample is what a worker has loaded for one input. The model processes batches in the shard's own
process. If a batch fails, its inputs are loaded again in halves, until the faulty input is alone in
its batch.
"""

import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, NamedTuple

import torch

from batchmill.execution.isolation.worker_channel import WorkerChannel
from batchmill.outcome import Fault, Outcome
from batchmill.storage.scratch import FOR_SOCKETS, scratch_folder, short_base

# A socket's path has at most 107 bytes. The folder's name has 22, and multiprocessing adds 18.
_LONGEST_FOLDER = 67
# Texts of the errors of torch's allocators that have no class of their own.
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


class Sample(NamedTuple):
    """What a worker has loaded for an input: the sample, and a note about the input."""

    value: Any
    note: Any


@dataclass(frozen=True, slots=True)
class IndexedSample:
    """A sample and the index of its input."""

    index: int
    sample: Sample


class Batch(NamedTuple):
    """The samples of some inputs, collated and pickled. `fault` is the error of the collation."""

    indices: list[int]
    notes: list[Any]
    pickled: bytes = b""
    fault: Fault | None = None

    @property
    def data(self) -> Any:
        """The collated samples. Read it only once: tensors are in shared memory."""
        return ForkingPickler.loads(self.pickled)


@dataclass(frozen=True, kw_only=True)
class BatchCallbacks:
    """How samples are processed.

    `collate` makes a batch of samples, in a worker. `process` returns the outcomes of a batch, in
    the batch's order, in this process. It raises BatchError if one of several inputs is faulty and
    it cannot know which one, and BrokenDeviceError. `overdue` and `end` commit the outcomes so far
    and end this process: `overdue` for a batch that takes too long, `end` for any other reason.
    """

    collate: Callable[[list[Any]], Any]
    process: Callable[[Batch], Sequence[Outcome]]
    overdue: Callable[[Sequence[int]], None]
    end: Callable[[str], None]


def socket_folder() -> AbstractContextManager[Path]:
    """Create a folder for the sockets that hand over tensors. It is removed after the block.

    Without it, each worker would create a folder of its own, and leave it behind when it is killed.

    Raises:
        StoreError: There is no place for temporary files.
    """
    return scratch_folder(FOR_SOCKETS, short_base(_LONGEST_FOLDER))


class BatchError(Exception):
    """A batch failed, and the faulty input is unknown.

    If `out_of_memory` is set, a smaller batch may succeed.
    """

    def __init__(self, message: str, *, out_of_memory: bool = False) -> None:
        super().__init__(message)
        self.out_of_memory = out_of_memory


class BrokenDeviceError(Exception):
    """From now on, the device returns only errors to this process."""


def gather_batch(
    items: Sequence[int | IndexedSample],
    *,
    collate: Callable[[list[Any]], Any],
    channel: WorkerChannel,
) -> Batch:
    """Collate the samples among a worker's items.

    Args:
        items: Samples, and the indices of inputs that have an outcome already.
        collate: Makes a batch of samples.
        channel: The worker's channel.
    """
    loaded = [item for item in items if isinstance(item, IndexedSample)]
    indices = [item.index for item in loaded]
    notes = [item.sample.note for item in loaded]
    if not loaded:
        return Batch([], [])
    if len(loaded) == 1:
        # If this ends the worker, the input is known.
        channel.resume(indices[0])
    try:
        # The queue to the parent would silently drop a batch that cannot be pickled.
        pickled = bytes(ForkingPickler.dumps(collate([item.sample.value for item in loaded])))
        return Batch(indices, notes, pickled)
    except Exception as error:  # noqa: BLE001  # The user's code may raise anything; it is reported.
        return Batch(indices, notes, fault=fault_of(error))
    finally:
        channel.leave()


def fault_of(error: BaseException) -> Fault:
    """Convert an exception to text, without the frame of the engine that caught it."""
    frames = error.__traceback__.tb_next if error.__traceback__ else None
    text = "".join(traceback.format_exception(type(error), error, frames))
    return Fault(type(error).__name__, str(error), text)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the memory of the device or machine is full, so that less may succeed."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in text for words in _OUT_OF_MEMORY)


def is_broken_device(error: BaseException) -> bool:
    """Return whether a GPU will return only errors, for example after an index out of range."""
    if is_out_of_memory(error):
        return False
    return isinstance(error, torch.AcceleratorError) or "CUDA error:" in str(error)


def free_device_memory() -> None:
    """Return the GPU memory that torch caches to the GPU."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
