"""Inference as a job: the step that runs a model, and its parameters."""

import os
import zipfile
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, model_validator

from batchmill.errors import OptionError
from batchmill.options import Options, Text

# What torch.export and torch.jit save, by convention.
_SUFFIXES = (".pt2", ".pt", ".pth", ".ts", ".torchscript")
_STEPS = {
    "rows": "batchmill.steps.predict:Predict",
    "files": "batchmill.steps.predict:PredictArrays",
}


class Inference(NamedTuple):
    """A step and its parameters."""

    step: str
    params: dict[str, Any]


def is_model_file(model: str) -> bool:
    """Tell whether a model is given by its file; else it is a reference."""
    return model.lower().endswith(_SUFFIXES)


def _as_names(value: object) -> object:
    """Accept names as one text with commas, or as a list of such texts."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple):
        return value
    return tuple(name.strip() for text in texts if text for name in str(text).split(","))


class ModelOptions(Options):
    """How a model is loaded and applied."""

    weights: Text = Field(
        default="",
        title="Weights",
        description="File that is passed to the function that makes the model. New content runs "
        "all inputs again.",
    )
    load: Text = Field(
        default="",
        title="Load",
        description="How inputs are opened: tensor, array, audio, image, text, json, or "
        "package.module:function, which gets the path. Default: by suffix.",
    )
    collate: Text = Field(
        default="default",
        title="Collate",
        description="How samples become a batch: default (torch), pad (to the longest sample), or "
        "package.module:function.",
    )
    device: Text = Field(
        default="auto",
        title="Device",
        description="Where the model runs: auto, cpu, cuda or cuda:1.",
    )
    classes: Annotated[tuple[str, ...], BeforeValidator(_as_names)] = Field(
        default=(),
        title="Classes",
        description="Names of the model's outputs, separated by commas. The rows then have the "
        "columns predicted and probability.",
    )
    predictions: Literal["rows", "files"] = Field(
        default="rows",
        title="Predictions",
        description="Write predictions as rows of the table, or as one file per input (.npy, .pt).",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not all(self.classes) or len(set(self.classes)) < len(self.classes):
            listed = ",".join(self.classes)
            raise OptionError(f"--classes {listed}: a name is empty or listed twice.")
        return self


def make_inference(model: str, options: ModelOptions) -> Inference:
    """Return the step that runs a model over inputs: see `batchmill.steps.predict`.

    Raises OptionError. Whether the model exists is checked when the job is prepared.
    """
    is_file = is_model_file(model)
    if not is_file and ":" not in model:
        raise OptionError(
            f"--model {model}: expected a file ({', '.join(_SUFFIXES)}), or "
            "package.module:function, which makes the model."
        )
    if is_file and options.weights:
        raise OptionError(
            f"--weights {options.weights}: only a function that makes a model takes weights. "
            "Drop it."
        )
    if is_file and os.path.isfile(model):
        _check_file(model)
    given = {
        "weights": model if is_file else options.weights,
        "model": "" if is_file else model,
        "load": options.load,
        "collate": options.collate,
        "device": options.device,
        "classes": list(options.classes),
    }
    step = _STEPS[options.predictions]
    return Inference(step, {name: value for name, value in given.items() if value})


def _check_file(model: str) -> None:
    """Raise OptionError for a file that is no model; it is not loaded, for that may take long."""
    exported = model.lower().endswith(".pt2")
    names = zipfile.ZipFile(model).namelist() if zipfile.is_zipfile(model) else []
    if any("/code/" in name or name.endswith("constants.pkl") for name in names) or (
        exported and names
    ):
        return
    raise OptionError(
        f"model {model}: is no {'exported program' if exported else 'TorchScript archive'}. Of "
        "saved weights (a state_dict), or of a whole model that torch.save has written, name a "
        "function that makes the model: --model package.module:function --weights FILE."
    )
