"""Batches of samples. DataLoader workers load them, and the shard's process processes them.

A sample is the data that a worker has loaded for one input. If a batch fails, its inputs are loaded
again in two halves. This repeats until the faulty input is alone in its batch.
"""

import logging
import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map

from batchmill.core.outcome import Fault, Outcome, UnstoredOutcome, text_of
from batchmill.runs.workers.processes import ends_within
from batchmill.runs.workers.worker import this_worker

logger = logging.getLogger(__name__)

_END_SECONDS = 1.0
# torch raises some errors without a special class. These texts identify the errors. The last one
# is of cuBLAS and cuDNN.
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "_alloc_failed")
_BROKEN_DEVICE = ("CUDA error:", "HIP error:")


@dataclass(frozen=True, slots=True)
class Sample:
    """The data that a worker has loaded for an input, the input's index, and a note about it."""

    index: int
    value: Any
    note: Any


class Batch(NamedTuple):
    """The collated samples of some inputs: `pickled` as a worker sends them, or as `data`.

    `fault` is the error of loading or collating them. `worker` is the process that has the tensors.
    """

    indices: list[int]
    notes: list[Any]
    pickled: bytes = b""
    data: Any = None
    fault: Fault | None = None
    worker: int = 0

    def load(self) -> "Batch | None":
        """Return the batch with its data; None if its tensors are lost with the worker."""
        if self.fault:
            return self
        try:
            return self._replace(pickled=b"", data=ForkingPickler.loads(self.pickled))
        except Exception as error:  # noqa: BLE001  # The user's classes may raise anything.
            # The connection may end a moment before the process.
            if isinstance(error, EOFError | OSError) and ends_within(self.worker, _END_SECONDS):
                return None
            return self._replace(pickled=b"", fault=fault_of(error))

    def pin(self) -> "Batch":
        """Return this batch with its tensors in page-locked memory.

        A GPU copies from there at full speed, and while this process does other work.
        """
        try:
            return self._replace(data=tree_map(_pinned, self.data))
        except Exception as error:  # noqa: BLE001  # Such a copy is only faster.
            logger.debug("A batch was not copied to page-locked memory: %s", error)
            return self


def _pinned(value: Any) -> Any:
    return value.pin_memory() if hasattr(value, "pin_memory") else value


class BegunBatch(NamedTuple):
    """A batch that was begun.

    `finish` returns its outcomes, in the batch's order. It raises the same errors as
    `BatchCallbacks.begin`. If `is_in_flight` is set, a device may still process the batch, and
    another batch can begin before `finish` is called.
    """

    indices: Sequence[int]
    finish: Callable[[], Sequence[Outcome | UnstoredOutcome]]
    is_in_flight: bool


@dataclass(frozen=True, kw_only=True)
class BatchCallbacks:
    """The functions that process samples.

    Attributes:
        collate: Collates samples into a batch. Runs in a worker.
        begin: Begins a batch. Runs in this process. Raises BatchError if the batch failed and the
            faulty input is unknown, and BrokenDeviceError.
        store: Stores the files of a batch, and returns its outcomes. Runs in a thread.
        overdue: Commits the outcomes so far and ends this process, after a batch exceeds the
            timeout. Receives the indices of the batch's inputs.
        end: Commits the outcomes so far and ends this process, for another reason.
        pins_memory: True to copy batches to page-locked memory before they begin.
    """

    collate: Callable[[list[Any]], Any]
    begin: Callable[[Batch], BegunBatch]
    store: Callable[[Sequence[Outcome | UnstoredOutcome]], Sequence[Outcome]]
    overdue: Callable[[Sequence[int]], None]
    end: Callable[[str], None]
    pins_memory: bool = False


class BatchError(Exception):
    """A batch failed, and the faulty input is unknown.

    If `out_of_memory` is set, a smaller batch may succeed.
    """

    def __init__(self, message: str, *, out_of_memory: bool = False) -> None:
        super().__init__(message)
        self.out_of_memory = out_of_memory


class BrokenDeviceError(Exception):
    """The device will return only errors to this process from now on."""


def gather_batch(samples: Sequence[Sample], collate: Callable[[list[Any]], Any]) -> Batch:
    """Collate samples in a worker. The user's `collate` may raise anything."""
    batch = Batch(
        [sample.index for sample in samples],
        [sample.note for sample in samples],
        worker=os.getpid(),
    )
    if len(samples) == 1:
        # The channel shows the input, so it is known if `collate` kills the worker.
        this_worker.channel.resume(samples[0].index)
    try:
        return batch._replace(pickled=_pickled(collate([sample.value for sample in samples])))
    except BaseException as error:
        if os.getpid() != batch.worker:
            raise  # `collate` forked this process, which must not return a batch.
        return batch._replace(fault=fault_of(error))
    finally:
        this_worker.channel.leave()


def _pickled(batch: Any) -> bytes:
    """Pickle a batch. The queue to the parent would silently drop what it cannot pickle."""
    try:
        return bytes(ForkingPickler.dumps(batch))
    except Exception as error:
        raise TypeError(f"the sample cannot be pickled: {error}") from error


def fault_of(error: BaseException) -> Fault:
    """Convert an exception to text, without the engine's frame that caught it."""
    frames = error.__traceback__.tb_next if error.__traceback__ else None
    text = "".join(traceback.format_exception(type(error), error, frames))
    return Fault(type(error).__name__, text_of(error), text)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the memory of the device or machine is full. A smaller batch may succeed."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = text_of(error).lower()
    return isinstance(error, RuntimeError) and any(words in text for words in _OUT_OF_MEMORY)


def is_broken_device(error: BaseException) -> bool:
    """Return whether a GPU will return only errors from now on.

    An index out of range in a kernel has this effect, for example.
    """
    return not is_out_of_memory(error) and any(words in text_of(error) for words in _BROKEN_DEVICE)


def free_device_memory() -> None:
    """Release the GPU memory that torch caches."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
