"""Runs batch steps: workers load samples, and the shard's process calls `process_batch`."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch.utils.data import default_collate

from batchmill.core.outcome import Fault, Outcome, UnstoredOutcome
from batchmill.core.user_step.load import Step
from batchmill.runs.inputs.result_rows import fields_of
from batchmill.runs.inputs.run_input import conclude, fail
from batchmill.runs.inputs.staging import Input, StagingArea, stage
from batchmill.runs.workers.loaded_batches import (
    Batch,
    BatchError,
    BegunBatch,
    BrokenDeviceError,
    is_broken_device,
    is_out_of_memory,
)

_WHOLE_RESULT = "the result"


class ResultError(Exception):
    """The result of `process_batch` cannot be divided among the samples."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchRunner:
    """Calls a batch step on batches of samples, and makes an outcome for each sample.

    `torch_dataset` is the step's torch Dataset. `inputs` are all inputs of the shard.
    """

    step: Step
    torch_dataset: Any
    inputs: Sequence[Input]
    staging: StagingArea

    def collate(self, samples: list[Any]) -> Any:
        """Collate samples with the torch Dataset's `collate_fn`, or with torch's default."""
        own = getattr(self.torch_dataset, "collate_fn", None)
        return default_collate(samples) if own is None else own(samples)

    @property
    def pins_memory(self) -> bool:
        """True if the step requests batches in page-locked memory."""
        return bool(getattr(self.torch_dataset, "pin_memory", False))

    def begin(self, batch: Batch) -> BegunBatch:
        """Begin a batch. A step without `begin_batch` also finishes it.

        Raises:
            BatchError: The batch failed, and the faulty input is unknown.
            BrokenDeviceError: The device will return only errors from now on.
        """
        work = _Work([self.inputs[index] for index in batch.indices], batch.notes)
        begin = getattr(self.torch_dataset, "begin_batch", None)
        started = time.perf_counter()
        if batch.fault:
            outcomes = self._failed(work, batch.fault, started)
        elif not begin:
            process = self.torch_dataset.process_batch
            outcomes = self._finish(work, partial(self._call, process, batch.data, work.inputs))
        else:
            try:
                finish = partial(self._finish, work, self._call(begin, batch.data, work.inputs))
                work.seconds = time.perf_counter() - started
                return BegunBatch(batch.indices, finish, is_in_flight=True)
            except BaseException as error:
                outcomes = self._failed(work, error, started)
        return BegunBatch(batch.indices, lambda: outcomes, is_in_flight=False)

    def _call(self, method: Callable[..., Any], data: Any, inputs: Sequence[Input]) -> Any:
        """Call a method of the step with a batch, and with output folders if it takes them."""
        if "outs" not in self.step.given:
            return method(data)
        return method(data, outs=[stage(self.staging, item) for item in inputs])

    def _finish(
        self, work: "_Work", call: Callable[[], Any]
    ) -> Sequence[Outcome | UnstoredOutcome]:
        """Return the outcomes of a batch. `call` returns the step's result."""
        started = time.perf_counter()
        try:
            results = results_of(call(), len(work.inputs))
        except BaseException as error:
            return self._failed(work, error, started)
        seconds = (work.seconds + time.perf_counter() - started) / len(work.inputs)
        return [
            conclude(self.step, item, self.staging, note, result, seconds)
            for item, note, result in zip(work.inputs, work.notes, results, strict=True)
        ]

    def _failed(
        self, work: "_Work", error: BaseException | Fault, started: float
    ) -> Sequence[Outcome | UnstoredOutcome]:
        """Return the outcomes of a batch of one that failed. Raises an error for a larger batch."""
        if isinstance(error, KeyboardInterrupt):
            raise error  # Batches are processed in the process that receives Ctrl-C.
        if isinstance(error, BaseException) and is_broken_device(error):
            raise BrokenDeviceError(f"the device stopped working: {error}") from error
        out_of_memory = isinstance(error, BaseException) and is_out_of_memory(error)
        # After a `ResultError`, a smaller batch would fail in the same way. In a batch of one, a
        # wrong result can look correct.
        if len(work.inputs) > 1 and not isinstance(error, ResultError):
            # `from None`, because the frames of the cause would keep the batch in memory.
            raise BatchError(
                f"a batch of {len(work.inputs)}", out_of_memory=out_of_memory
            ) from None
        seconds = (work.seconds + time.perf_counter() - started) / len(work.inputs)
        outcomes = [
            fail(item, self.staging, note._replace(seconds=note.seconds + seconds), error)
            for item, note in zip(work.inputs, work.notes, strict=True)
        ]
        return [outcome._replace(kind="oom") for outcome in outcomes] if out_of_memory else outcomes

    def execute_one(self, index: int) -> Any:
        """Load, collate and process one input in this process, and return its result."""
        data = self.collate([self.torch_dataset[index]])
        process = self.torch_dataset.process_batch
        return results_of(self._call(process, data, [self.inputs[index]]), 1)[0]


@dataclasses.dataclass
class _Work:
    """The inputs of a batch, their notes, and the seconds that its first phase took."""

    inputs: Sequence[Input]
    notes: Sequence[Any]
    seconds: float = 0.0


def results_of(given: Any, count: int) -> list[Any]:
    """Divide the result of `process_batch` among its `count` samples.

    A list has one result for each sample. The first dimension of a tensor or array counts the
    samples. The fields of a mapping, NamedTuple or dataclass have such values, and each sample gets
    its own part of each field. None gives no row to any sample.

    Args:
        given: The result.
        count: The number of samples.

    Returns:
        The result of each sample.

    Raises:
        ResultError: The result has a different form or length.

    >>> results_of({"score": [0.5, 0.9], "name": ["a", "b"]}, 2)
    [{'score': 0.5, 'name': 'a'}, {'score': 0.9, 'name': 'b'}]
    """
    if given is None:
        return [None] * count
    fields = fields_of(given)
    if fields is None:
        return _values_of(given, count, _WHOLE_RESULT)
    parts = {str(name): _values_of(value, count, repr(str(name))) for name, value in fields.items()}
    return [{name: values[i] for name, values in parts.items()} for i in range(count)]


def _values_of(value: Any, count: int, what: str) -> list[Any]:
    # The items of a table, such as a DataFrame, are its columns.
    shape = None if hasattr(value, "columns") else getattr(value, "shape", None)
    if shape is not None:
        if len(shape) == 0 or shape[0] != count:
            raise ResultError(
                f"process_batch: {what} has the shape {tuple(shape)} for a batch of {count}. "
                "The first dimension must be the number of samples."
            )
        value = _on_cpu(value)
        # A tensor of numbers. One call, because torch needs a microsecond to take out an item.
        is_row = hasattr(value, "detach") and len(shape) == 1
        return value.tolist() if is_row else list(value)
    # torch itself uses tuples for fields. A tuple as the whole result is ambiguous: it may hold
    # several results of one batch.
    kinds = (list,) if what == _WHOLE_RESULT else (list, tuple)
    if isinstance(value, kinds) and len(value) == count:
        return [_on_cpu(part) for part in value]
    size = f" of length {len(value)}" if isinstance(value, list | tuple) else ""
    raise ResultError(
        f"process_batch: {what} is a {type(value).__name__}{size} for a batch of {count}. Return a "
        "list with one row per sample, tensors whose first dimension is the number of samples, or "
        "a dict of these."
    )


def _on_cpu(value: Any) -> Any:
    return value.detach().cpu() if hasattr(value, "detach") else value
