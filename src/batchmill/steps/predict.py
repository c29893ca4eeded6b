"""Run a model over files: workers open and collate them, the shard's process calls the model."""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import AfterValidator, ValidationInfo
from torch.utils._pytree import tree_map, tree_map_only

from batchmill.core.digests import digest
from batchmill.core.security.allowlist import refused_models
from batchmill.core.user_step.fingerprint import code_digest
from batchmill.core.user_step.import_reference import is_reference, resolve_reference
from batchmill.core.user_step.tracked_file import ContentCounts
from batchmill.datasets.reading.open_file import choose_load
from batchmill.datasets.reading.padding import pad_collate
from batchmill.errors import OptionError, StepError
from batchmill.runs.inputs.batch_runner import ResultError, results_of
from batchmill.runs.inputs.result_rows import fields_of
from batchmill.steps.inference.copies import Copies, copies_of
from batchmill.steps.inference.model_step import is_model_file
from batchmill.steps.inference.models import (
    Model,
    check_factory,
    choose_device,
    load_model,
    make_model,
)

_COLLATES = {"default": torch.utils.data.default_collate, "pad": pad_collate}


def _opened(value: Any) -> Any:
    """Return a dataclass or another record of tensors as a dict, because torch looks into dicts."""
    fields = fields_of(value)
    return value if fields is None else tree_map(_opened, fields)


def _refuse_nan(value: Any) -> None:
    if isinstance(value, torch.Tensor):
        has_nan = bool(value.isnan().any())
    else:
        # Other arrays, such as those of objects or dates, have no NaN.
        is_number = isinstance(value, float | np.floating | np.ndarray)
        has_nan = is_number and np.asarray(value).dtype.kind in "fc" and bool(np.isnan(value).any())
    if has_nan:
        raise ValueError(
            "the model returned NaN, which is not a result. Check the input and the model. For a "
            "missing value, return a list with a dict per sample, and None as the value."
        )


def _check_model(reference: str | None, info: ValidationInfo) -> str | None:
    if reference is not None:
        weights = (info.context or {}).get("weights")
        check_factory(resolve_reference(reference, "model"), reference, weights)
    return reference


def _check_load(load: str | None) -> str | None:
    _samples([], load)
    return load


def _check_collate(collate: str) -> str:
    _collate(collate)
    return collate


class _Files:
    """Files as a torch Dataset. Each is opened when its item is read."""

    def __init__(self, paths: Sequence[str], load: Callable[[Path], Any]) -> None:
        self._paths = paths
        self._load = load

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Any:
        return self._load(Path(self._paths[index]))


def _samples(inputs: Sequence[str], load: str | None) -> Any:
    if load is None or not is_reference(load):
        # Without `load`, the reader is chosen per file, so a file without a reader fails alone.
        return _Files(inputs, choose_load(load, [], "the inputs"))
    found: Any = resolve_reference(load, "load")
    # Without the annotation, mypy would narrow the class to one that takes no arguments.
    is_class: bool = inspect.isclass(found)
    return found(inputs) if is_class else _Files(inputs, found)


def _collate(collate: str) -> Callable[[list[Any]], Any]:
    if collate in _COLLATES:
        return _COLLATES[collate]
    if is_reference(collate):
        found: Callable[[list[Any]], Any] = resolve_reference(collate, "collate")
        return found
    raise StepError(
        f"collate={collate!r}: expected {', '.join(_COLLATES)} or package.module:function."
    )


class PredictItems:
    """A step that calls a model with batches of a torch Dataset, and returns a row per sample.

    Use it at the top level of a module, over an existing torch Dataset: `items =
    PredictItems(ConcatDataset([...]), model="mylab.nets:segmenter")`. Its item i belongs to row i
    of the manifest.

    The model is called with a tensor, with the entries of a dict as keyword arguments, or with the
    items of a tuple as positional arguments. With `classes`, its output is a score per class
    (logits), and rows have `predicted` (the class with the highest score) and `probability` (by
    softmax). Otherwise rows have `prediction`, or the entries of the dict, NamedTuple or dataclass
    that the model returns. An input fails if the model returns NaN for it.
    """

    # The model of a subclass that `predict_with` has made. A tuple, because a function that is an
    # attribute of a class is a method.
    given: ClassVar[tuple[Any, ...]] = ()

    def __init__(
        self,
        dataset: Any,
        *,
        weights: str | None = None,
        model: str | None = None,
        device: str = "auto",
        collate: str = "default",
        classes: list[str] | None = None,
    ) -> None:
        """Check the parameters. The model is loaded with the first batch.

        Args:
            dataset: The torch Dataset.
            weights: The file of a model, or of weights for `model`.
            model: The reference of a model, or of a function that makes one: see
                `batchmill.steps.inference.models.load_model`.
            device: `cpu`, `cuda`, or `auto`.
            collate: How to make a batch. `default`: the Dataset's `collate_fn`, or torch's. `pad`:
                pad to the longest sample. Otherwise the reference of a function.
            classes: The names of the classes.

        Raises:
            StepError: A parameter cannot be used.
        """
        if weights is None and model is None and not self.given:
            raise StepError("give weights=FILE, model=package.module:attribute, or both")
        self._dataset = dataset
        self._reference = model or (type(self).__qualname__ if self.given else str(weights))
        self._weights = weights if model or self.given else None
        self._device = device
        self._loaded: tuple[Copies, Model] | None = None
        self._classes = classes
        self.collate_fn = _collate(collate)
        if collate == "default":
            self.collate_fn = getattr(dataset, "collate_fn", self.collate_fn)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]

    @property
    def version_files(self) -> Mapping[str, str]:
        """The file that `version` depends on, if any. A run ends when it changes."""
        file = self._reference if is_model_file(self._reference) else self._weights
        return {"model": os.path.abspath(file)} if file else {}

    @property
    def version(self) -> str:
        """The identity of the model: its file's content, or the code that makes it."""
        file = self.version_files.get("model")
        try:
            content = ContentCounts().content(file) if file else ""
        except OSError as error:
            raise StepError(f"model {file}: {error.strerror}.") from error
        # The code of a given model is part of the step.
        is_made = not self.given and file != self._reference
        made_by = code_digest(self._reference) if is_made else ""
        return digest("model", content, made_by)

    @property
    def pin_memory(self) -> bool:
        """True if batches are copied to a GPU."""
        return choose_device(self._device).type == "cuda"

    def process_batch(self, batch: Any) -> Any:
        """Return the rows of a batch."""
        return self.begin_batch(batch)()

    def begin_batch(self, batch: Any) -> Callable[[], Any]:
        """Begin a batch on the device. Return a function that returns its rows.

        A GPU can get the next batch before the function is called. The arguments are those of
        `process_batch`.
        """
        finish = self.begin(batch)
        return lambda: self._rows(finish())

    def begin(self, batch: Any) -> Callable[[], Any]:
        """Call the model with a batch, and do not wait for its output.

        Args:
            batch: A collated batch.

        Returns:
            A function that returns the model's output, in main memory: a tensor, or a dict or
            NamedTuple of tensors, with one entry per sample in the first dimension, or a list with
            a dict per sample. A dataclass becomes a dict. It raises ValueError if a tensor of the
            output contains NaN. Each input of the batch is then executed alone, and only those with
            NaN fail.

        Raises:
            ResultError: The model returned a plain tuple.
        """
        copies, model = self.load()
        with torch.inference_mode():
            moved = copies.to_device(batch)
            if isinstance(moved, dict):
                output = model(**moved)
            elif isinstance(moved, tuple | list):
                output = model(*moved)
            else:
                output = model(moved)
            if isinstance(output, tuple) and not hasattr(output, "_fields"):
                raise ResultError(
                    f"the model returned a tuple of {len(output)} values without names. "
                    "Return a tensor, a dict or a NamedTuple."
                )
            output, wait = copies.to_memory(tree_map(_opened, output))

        def finish() -> Any:
            wait()
            tree_map(_refuse_nan, output)
            return output

        return finish

    def _rows(self, output: Any) -> Any:
        if self._classes:
            return self._classify(output)
        return {"prediction": output} if isinstance(output, torch.Tensor) else output

    def load(self) -> tuple[Copies, Model]:
        """Return what copies batches to the device and back, and the model on the device.

        The model is loaded once. A file that changes later has no effect, because results of two
        models must not be mixed.

        Raises:
            StepError, OptionError: The model cannot be loaded.
        """
        if self._loaded is None:
            device = choose_device(self._device)
            if self.given:
                (given,) = self.given
                model = make_model(given, self._reference, device, self._weights)
            else:
                model = load_model(self._reference, device, self._weights)
            self._loaded = copies_of(device), model
        return self._loaded

    def _classify(self, scores: Any) -> dict[str, Any]:
        classes = self._classes or []
        if not isinstance(scores, torch.Tensor) or scores.shape[1:] != (len(classes),):
            shape = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores)
            raise ResultError(
                f"classes has {len(classes)} names, but the model returned {shape} for a batch: "
                f"expected (batch, {len(classes)})"
            )
        probability, index = scores.float().softmax(1).max(1)
        return {"predicted": [classes[i] for i in index.tolist()], "probability": probability}


class Predict(PredictItems):
    """A step that calls a model with batches of the opened inputs, and returns a row per input.

    Inputs are opened by their suffix, as in `open_dataset`. The other parameters are those of
    `PredictItems`.
    """

    # The sources that these parameters name are part of the step's identity.
    references = ("model", "load", "collate")

    def __init__(
        self,
        inputs: Sequence[str],
        *,
        weights: Annotated[str | None, ContentCounts(refused=refused_models)] = None,
        model: Annotated[str | None, AfterValidator(_check_model)] = None,
        device: str = "auto",
        load: Annotated[str | None, AfterValidator(_check_load)] = None,
        collate: Annotated[str, AfterValidator(_check_collate)] = "default",
        classes: list[str] | None = None,
    ) -> None:
        """Check the parameters, and load the model.

        Args:
            inputs: The paths of the inputs.
            weights: As in `PredictItems`.
            model: As in `PredictItems`.
            device: As in `PredictItems`.
            load: How to open inputs: the name of a kind of file, or the reference of a function of
                a path or of a Dataset class. A class gets the list of paths, and may have its own
                `collate_fn`.
            collate: As in `PredictItems`.
            classes: As in `PredictItems`.

        Raises:
            StepError: A parameter cannot be used.
        """
        super().__init__(
            _samples(inputs, load),
            weights=weights,
            model=model,
            device=device,
            collate=collate,
            classes=classes,
        )
        # Loaded here, because a failure in the first batch would be recorded as its inputs' fault.
        self.load()


class PredictArrays(Predict):
    """Like `Predict`, but the model's output for each input is written to a file of its own.

    The file is `prediction.npy` for a tensor, `prediction.pt` for a dict or tuple of tensors.
    """

    def process_batch(self, batch: Any, outs: Sequence[Path]) -> Any:  # type: ignore[override]
        """Write the model's output for each sample, and return rows that name the files."""
        return self.begin_batch(batch, outs)()

    def begin_batch(  # type: ignore[override]
        self, batch: Any, outs: Sequence[Path]
    ) -> Callable[[], Any]:
        """Begin a batch on the device. Return a function that writes the files."""
        finish = self.begin(batch)
        return lambda: self._write(finish(), outs)

    def _write(self, output: Any, outs: Sequence[Path]) -> Any:
        scores = self._classify(output) if self._classes else {}
        parts = results_of(output, len(outs))
        # `results_of` returns the items of a tensor with one dimension as Python numbers.
        parts = list(output) if isinstance(output, torch.Tensor) else parts
        rows = results_of(scores, len(outs))
        for number, (out, view) in enumerate(zip(outs, parts, strict=True)):
            # torch.save() would store the whole batch with a view.
            part = tree_map_only(torch.Tensor, torch.clone, view)
            name = "prediction.npy" if isinstance(part, torch.Tensor) else "prediction.pt"
            if isinstance(part, torch.Tensor):
                # NumPy has no numbers of the type bfloat16.
                part = part.float() if part.dtype == torch.bfloat16 else part
                np.save(out / name, part.numpy())
            else:
                torch.save(part, out / name)
            rows[number] = {"output": name, **rows[number]}
        return rows


def predict_with(model: Any, *, files: bool, weights: str | None = None) -> type[Predict]:
    """Return a step that runs a model which other processes cannot import.

    Args:
        model: A `torch.nn.Module`, or a function or class that creates a model.
        files: Write each prediction to a file of its own, as `PredictArrays` does.
        weights: The saved weights that the function or class gets.

    Raises:
        OptionError: The model cannot be called.
        StepError: The function or class needs other arguments.
    """
    if not callable(model):
        raise OptionError(
            f"model: got a value of type {type(model).__name__}. Give a torch.nn.Module, a "
            "function or class that creates a model, or the path of a model file."
        )
    name = getattr(model, "__name__", type(model).__name__)
    check_factory(model, name, weights)
    base = PredictArrays if files else Predict
    return type(name, (base,), {"given": (model,), "__module__": "__main__"})
