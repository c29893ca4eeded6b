"""A batch step: workers load its samples, the shard's process gives them to `process_batch`."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from batchmill.execution.isolation import Batch, BatchError, BrokenDeviceError
from batchmill.execution.isolation.batches import is_broken_device, is_out_of_memory
from batchmill.execution.rows import fields_of, is_record
from batchmill.execution.run_input import Loaded, conclude, fail, make_dataset
from batchmill.execution.staging import Input, StagingArea, stage
from batchmill.outcome import Fault, Outcome
from batchmill.step.load import Step

_ALL = "it"


class ResultError(Exception):
    """What `process_batch` gave is nothing that belongs to its samples."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchRunner:
    """Gives batches of samples to a batch step, and makes an outcome of what comes of each.

    `made` is the step's Dataset, `inputs` those of the shard.
    """

    step: Step
    made: Any
    inputs: Sequence[Input]
    bench: StagingArea

    @classmethod
    def over(cls, step: Step, inputs: Sequence[Input], bench: StagingArea) -> "BatchRunner":
        """Make the step's Dataset of some inputs, and a runner for it."""
        return cls(step=step, made=make_dataset(step, inputs), inputs=inputs, bench=bench)

    def collate(self, samples: list[Any]) -> Any:
        """Make a batch of samples, as the Dataset wants it; else as torch does."""
        own = getattr(self.made, "collate_fn", None)
        if own is not None:
            return own(samples)
        from torch.utils.data import default_collate

        return default_collate(samples)

    def process(self, batch: Batch) -> list[Outcome]:
        """Return the outcomes of a batch's inputs, in its order.

        Raises BatchError where one of several is to blame, and nothing tells which.
        """
        inputs = [self.inputs[index] for index in batch.indices]
        started = time.perf_counter()
        if batch.fault:
            return self._blamed(inputs, batch.notes, batch.fault, started)
        try:
            takes_outs = "outs" in self.step.given
            folders = [stage(self.bench, item) for item in inputs] if takes_outs else []
            extra = {"outs": folders} if folders else {}
            given = self.made.process_batch(batch.data, **extra)
            results = results_of(given, len(inputs))
        except ResultError as error:
            # It would be the same with fewer; and with one, it may look as if it were right.
            return self._all_failed(inputs, batch.notes, error, started)
        except Exception as error:
            return self._blamed(inputs, batch.notes, error, started)
        seconds = (time.perf_counter() - started) / len(inputs)
        return [
            conclude(self.step, item, self.bench, note, result, seconds)
            for item, note, result in zip(inputs, batch.notes, results, strict=True)
        ]

    def _blamed(
        self,
        inputs: Sequence[Input],
        notes: Sequence[Loaded],
        error: Exception | Fault,
        started: float,
    ) -> list[Outcome]:
        if isinstance(error, Exception) and is_broken_device(error):
            raise BrokenDeviceError(f"the device is broken for this process: {error}") from error
        out_of_memory = isinstance(error, Exception) and is_out_of_memory(error)
        if len(inputs) > 1:
            # Without its cause, whose frames hold on to the batch.
            raise BatchError(f"a batch of {len(inputs)}", out_of_memory=out_of_memory) from None
        outcomes = self._all_failed(inputs, notes, error, started)
        return [outcome._replace(kind="oom") for outcome in outcomes] if out_of_memory else outcomes

    def _all_failed(
        self,
        inputs: Sequence[Input],
        notes: Sequence[Loaded],
        error: Exception | Fault,
        started: float,
    ) -> list[Outcome]:
        seconds = (time.perf_counter() - started) / len(inputs)
        return [
            fail(item, self.bench, note, error, seconds)
            for item, note in zip(inputs, notes, strict=True)
        ]

    def execute_one(self, index: int) -> Any:
        """Load, collate and process one input here, and return what came of it."""
        data = self.collate([self.made[index]])
        extra = {}
        if "outs" in self.step.given:
            extra = {"outs": [self.bench.staging / self.inputs[index].input_id]}
        return results_of(self.made.process_batch(data, **extra), 1)[0]


def results_of(given: Any, count: int) -> list[Any]:
    """Tell what `process_batch` gave for each of its `count` samples.

    A list has a result for each; the first dimension of a tensor or array is that of the samples;
    of a mapping, NamedTuple or dataclass of these, each sample gets its own values. None is no row
    for any. Raises ResultError.

    >>> results_of({"score": [0.5, 0.9], "name": ["a", "b"]}, 2)
    [{'score': 0.5, 'name': 'a'}, {'score': 0.9, 'name': 'b'}]
    """
    if given is None:
        return [None] * count
    if not is_record(given):
        return _values_of(given, count, _ALL)
    parts = {
        str(name): _values_of(value, count, repr(str(name)))
        for name, value in fields_of(given).items()
    }
    return [{name: values[i] for name, values in parts.items()} for i in range(count)]


def _values_of(value: Any, count: int, what: str) -> list[Any]:
    shape = getattr(value, "shape", None)
    if shape is not None:
        if len(shape) == 0 or shape[0] != count:
            raise ResultError(
                f"process_batch: {what} has the shape {tuple(shape)} for a batch of {count}. "
                "The first dimension is to be that of the samples."
            )
        return [_on_cpu(part) for part in value]
    # A tuple alone is as likely several results of a batch; as a field, it is torch's own form.
    kinds = (list,) if what == _ALL else (list, tuple)
    if isinstance(value, kinds) and len(value) == count:
        return [_on_cpu(part) for part in value]
    size = f" of length {len(value)}" if isinstance(value, list | tuple) else ""
    raise ResultError(
        f"process_batch: {what} is a {type(value).__name__}{size} for a batch of {count}. Return a "
        "list with a row for each sample, tensors whose first dimension is that of the samples, or "
        "a dict of these."
    )


def _on_cpu(value: Any) -> Any:
    return value.detach().cpu() if hasattr(value, "detach") else value
