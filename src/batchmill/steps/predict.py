"""A model over files: workers open and collate them, the shard's process calls the model."""

import inspect
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import AfterValidator
from torch.utils._pytree import tree_map

from batchmill.allowlist import refused_models
from batchmill.digests import digest
from batchmill.errors import StepError
from batchmill.execution.batch_runner import ResultError, results_of
from batchmill.inference.model_step import is_model_file
from batchmill.inference.models import choose_device, load_model
from batchmill.reading import pad_collate
from batchmill.reading.files import choose_load, open_by_suffix
from batchmill.step.fingerprint import sources_of
from batchmill.step.import_reference import is_reference, resolve_reference
from batchmill.step.tracked_file import ContentCounts

COLLATES = ("default", "pad")


def _to_device(value: Any, *, device: torch.device) -> Any:
    return value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value


def _to_cpu(value: Any) -> Any:
    # Blocking: what is on its way yet would be read as it was before.
    return value.cpu() if isinstance(value, torch.Tensor) else value


def _parts(given: Any, count: int) -> list[Any]:
    """Return what a model has given for each sample. Raises ResultError."""
    if isinstance(given, list):
        return results_of(given, count)
    fields = results_of(given if not isinstance(given, torch.Tensor) else {"": given}, count)
    # A view would be saved with the whole batch.
    parts = [{name: _own(value) for name, value in part.items()} for part in fields]
    return [part[""] for part in parts] if isinstance(given, torch.Tensor) else parts


def _own(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _model_there(reference: str | None) -> str | None:
    if reference is not None:
        resolve_reference(reference, "model")
    return reference


def _load_there(load: str | None) -> str | None:
    _samples([], load)
    return load


def _collate_there(collate: str) -> str:
    _collate(collate)
    return collate


class _Files:
    """Files, each opened when it is its turn."""

    def __init__(self, paths: Sequence[str], load: Callable[[Path], Any]) -> None:
        self._paths = paths
        self._load = load

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Any:
        return self._load(Path(self._paths[index]))


def _samples(inputs: Sequence[str], load: str | None) -> Any:
    if load is None:
        # By suffix, each for itself: one that nobody can open costs itself alone.
        return _Files(inputs, open_by_suffix)
    if not is_reference(load):
        return _Files(inputs, choose_load(load, [], "the inputs"))
    found: Any = resolve_reference(load, "load")
    # isclass() would have told the type checker that it takes no arguments.
    is_class: bool = inspect.isclass(found)
    return found(inputs) if is_class else _Files(inputs, found)


def _collate(collate: str) -> Callable[[list[Any]], Any]:
    if collate == "default":
        return torch.utils.data.default_collate
    if collate == "pad":
        return pad_collate
    if is_reference(collate):
        found: Callable[[list[Any]], Any] = resolve_reference(collate, "collate")
        return found
    raise StepError(
        f"collate={collate!r}: expected {', '.join(COLLATES)} or package.module:function."
    )


class PredictItems:
    """Calls a model with batches of a Dataset's samples, and gives a row for each.

    For the top level of a module, over a Dataset that is there already: `items =
    PredictItems(ConcatDataset([...]), model="mylab.nets:segmenter")`, as a step. Its item i belongs
    to row i of the manifest.

    `weights` is the file of a model, or `model` the reference of one, or of what makes one of the
    `weights`: see `batchmill.inference.models.load_model`. `collate` makes a batch: `default` is
    the Dataset's own `collate_fn`, or torch's; `pad` pads to the longest (`pad_collate`); or a
    function.

    The model is called with a tensor; with a dict's entries by name; with the items of a tuple one
    by one. With `classes`, its output is taken for a score of each class (logits): rows have
    `predicted`, the name of the highest, and `probability`, by softmax. Else they have
    `prediction`, or, if the model gives a dict or NamedTuple, its entries.
    """

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
        if weights is None and model is None:
            raise StepError("give weights=FILE, model=package.module:attribute, or both")
        self._dataset = dataset
        self._reference = model or str(weights)
        self._weights = weights if model else None
        self._device = device
        self._classes = classes
        self.collate_fn = _collate(collate)
        if collate == "default":
            self.collate_fn = getattr(dataset, "collate_fn", self.collate_fn)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]

    @property
    def version(self) -> str:
        """What the model is: its file's content, or the sources that make it."""
        file = self._reference if is_model_file(self._reference) else self._weights
        try:
            content = ContentCounts().content(file) if file else ""
        except OSError as error:
            raise StepError(f"model {file}: {error.strerror}.") from error
        made_by = {} if file == self._reference else sources_of(self._reference)
        return digest("model", content, json.dumps(made_by))

    def process_batch(self, batch: Any) -> Any:
        """Return the rows of a batch."""
        given = self.predict(batch)
        if self._classes:
            return self._classified(given)
        return {"prediction": given} if isinstance(given, torch.Tensor) else given

    def predict(self, batch: Any) -> Any:
        """Call the model with a batch, and return what it gives, in the memory of the machine.

        That is a tensor, or a dict or NamedTuple of tensors, with the samples in their first
        dimension; or a list with a dict for each sample. Raises ResultError for anything else.
        """
        device = choose_device(self._device)
        model = load_model(self._reference, device, self._weights)
        with torch.inference_mode():
            moved = tree_map(partial(_to_device, device=device), batch)
            if isinstance(moved, dict):
                given = model(**moved)
            elif isinstance(moved, tuple | list):
                given = model(*moved)
            else:
                given = model(moved)
            if isinstance(given, tuple) and not hasattr(given, "_fields"):
                raise ResultError(
                    f"the model gives a tuple of {len(given)}, which says nothing of what is what. "
                    "Have it give a tensor, a dict or a NamedTuple."
                )
            return tree_map(_to_cpu, given)

    def _classified(self, scores: Any) -> dict[str, Any]:
        classes = self._classes or []
        if not isinstance(scores, torch.Tensor) or scores.shape[1:] != (len(classes),):
            shape = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores)
            raise ResultError(
                f"classes has {len(classes)} names, and the model gives {shape} for a batch: "
                f"expected (batch, {len(classes)})"
            )
        probability, index = scores.float().softmax(1).max(1)
        return {"predicted": [classes[i] for i in index.tolist()], "probability": probability}


class Predict(PredictItems):
    """Calls a model with batches of what the inputs hold, and gives a row for each.

    Inputs are opened by their suffix, as `open_dataset` does it; `load` names a kind, or
    package.module:attribute: a function of a path, or a Dataset class, which is made with the list
    of paths and brings its own `collate_fn`. The other parameters are those of `PredictItems`.
    """

    # The source of what these parameters name is part of what this step is.
    references = ("model", "load", "collate")

    def __init__(
        self,
        inputs: Sequence[str],
        *,
        weights: Annotated[str | None, ContentCounts(refused=refused_models)] = None,
        model: Annotated[str | None, AfterValidator(_model_there)] = None,
        device: str = "auto",
        load: Annotated[str | None, AfterValidator(_load_there)] = None,
        collate: Annotated[str, AfterValidator(_collate_there)] = "default",
        classes: list[str] | None = None,
    ) -> None:
        super().__init__(
            _samples(inputs, load),
            weights=weights,
            model=model,
            device=device,
            collate=collate,
            classes=classes,
        )
        # Now, not for the first batch: what fails here would be taken for a batch's fault.
        load_model(self._reference, choose_device(device), self._weights)


class PredictArrays(Predict):
    """As `Predict`, but what the model gives for each input is written to a file of its own.

    `prediction.npy` for a tensor, `prediction.pt` for a dict or tuple of tensors.
    """

    def process_batch(self, batch: Any, outs: Sequence[Path]) -> Any:  # type: ignore[override]
        """Write what the model gives for each sample, and return a row that names it."""
        given = self.predict(batch)
        rows: list[dict[str, Any]] = [{} for _ in outs]
        if self._classes:
            named = self._classified(given)
            rows = [
                {"predicted": name, "probability": float(value)}
                for name, value in zip(named["predicted"], named["probability"], strict=True)
            ]
        for number, (out, part) in enumerate(zip(outs, _parts(given, len(outs)), strict=True)):
            if isinstance(part, torch.Tensor):
                np.save(out / "prediction.npy", part.numpy())
                name = "prediction.npy"
            else:
                torch.save(part, out / "prediction.pt")
                name = "prediction.pt"
            rows[number] = {"output": name, **rows[number]}
        return rows
