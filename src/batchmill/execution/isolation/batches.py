"""Batches of samples, on their way from DataLoader workers to the process that runs the shard.

A sample is what a worker has loaded of one input. What a model does with a batch of them happens in
the shard's own process; a batch with which it does not cope is loaded again in halves, until the
one that is to blame stands alone.
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

# multiprocessing adds 18 characters for a socket, and the folder has 22.
_LONGEST_FOLDER = 67
# What torch's allocators say that have no error class of their own.
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


class Sample(NamedTuple):
    """What a worker has loaded of an input, and what it has to say of the input."""

    value: Any
    note: Any


@dataclass(frozen=True, slots=True)
class Taken:
    """A sample and the index of its input."""

    index: int
    sample: Sample


class Batch(NamedTuple):
    """The samples of some inputs, collated and pickled; `fault` says why they could not be."""

    indices: list[int]
    notes: list[Any]
    pickled: bytes = b""
    fault: Fault | None = None

    @property
    def data(self) -> Any:
        """The collated samples; to be asked for once, for tensors lie in shared memory."""
        return ForkingPickler.loads(self.pickled)


@dataclass(frozen=True, kw_only=True)
class BatchCallbacks:
    """What becomes of samples.

    `collate` makes a batch of some, in a worker; `process` gives the outcomes of a batch, in its
    order, in this process. It raises BatchError where it cannot tell whose fault it is; of a batch
    of one, it can; and BrokenDeviceError. `overdue` and `end` end this process once what is done
    is committed: `overdue` for a batch that takes too long, `end` for any other reason.
    """

    collate: Callable[[list[Any]], Any]
    process: Callable[[Batch], Sequence[Outcome]]
    overdue: Callable[[Sequence[int]], None]
    end: Callable[[str], None]


def folder_for_sockets() -> AbstractContextManager[Path]:
    """Give a folder for the sockets by which tensors leave workers; it goes with the block.

    Each worker would make one of its own, and leave it where it is when it is killed. Raises
    StoreError.
    """
    return scratch_folder(FOR_SOCKETS, short_base(_LONGEST_FOLDER))


class BatchError(Exception):
    """A batch that could not be processed, and of which nobody knows which input is to blame.

    With `out_of_memory`, a smaller one may succeed.
    """

    def __init__(self, message: str, *, out_of_memory: bool = False) -> None:
        super().__init__(message)
        self.out_of_memory = out_of_memory


class BrokenDeviceError(Exception):
    """A device that gives nothing but errors from now on, to this process."""


def gather_batch(
    items: Sequence[int | Taken], *, collate: Callable[[list[Any]], Any], station: WorkerChannel
) -> Batch:
    """Collate the samples among a worker's items; those that are but an index have none."""
    taken = [item for item in items if isinstance(item, Taken)]
    indices = [item.index for item in taken]
    notes = [item.sample.note for item in taken]
    if not taken:
        return Batch([], [])
    if len(taken) == 1:
        station.resume(indices[0])  # Then it is known whose fault it is if this ends the worker.
    try:
        # Here, and not by the queue to the parent: that would drop what cannot be pickled.
        pickled = bytes(ForkingPickler.dumps(collate([item.sample.value for item in taken])))
        return Batch(indices, notes, pickled)
    except Exception as error:  # noqa: BLE001  # The user's own code: any fault of it is told.
        return Batch(indices, notes, fault=fault_of(error))
    finally:
        station.leave()


def fault_of(error: BaseException) -> Fault:
    """Put an exception into words, from the first line on that is not batchmill's."""
    frames = error.__traceback__.tb_next if error.__traceback__ else None
    text = "".join(traceback.format_exception(type(error), error, frames))
    return Fault(type(error).__name__, str(error), text)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether a smaller batch may succeed: the device's memory, or the machine's, is full."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in text for words in _OUT_OF_MEMORY)


def is_broken_device(error: BaseException) -> bool:
    """Tell whether a GPU will answer with errors alone, as after an index out of range there."""
    if is_out_of_memory(error):
        return False
    return isinstance(error, torch.AcceleratorError) or "CUDA error:" in str(error)


def free_device_memory() -> None:
    """Give what torch keeps of a GPU's memory for later back to it."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
