"""Convert a model and its options to a step with parameters."""

import os
import zipfile
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from batchmill.errors import OptionError
from batchmill.options import CommaSeparated, Options, Text
from batchmill.storage import is_url

# The usual suffixes of files that torch.export and torch.jit save.
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
    """Return whether a model is a file. If not, it is a reference to a function."""
    return model.lower().endswith(_SUFFIXES)


class ModelOptions(Options):
    """Options that load and apply a model."""

    weights: Text = Field(
        default="",
        title="Weights",
        description="File that is passed to the function that makes the model. If its content "
        "changes, all inputs are executed again.",
    )
    load: Text = Field(
        default="",
        title="Load",
        description="How inputs are opened: tensor, array, audio, image, text, json, or "
        "package.module:function, which receives the path. Default: chosen by the file's suffix.",
    )
    collate: Text = Field(
        default="default",
        title="Collate",
        description="How samples are combined into a batch: default (torch), pad (to the longest "
        "sample), or package.module:function.",
    )
    device: Text = Field(
        default="auto",
        title="Device",
        description="Device that runs the model: auto, cpu, cuda or cuda:1.",
    )
    classes: CommaSeparated = Field(
        default="",
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
        names = _names_in(self.classes)
        if not all(names) or len(set(names)) < len(names):
            raise OptionError(
                f"--classes {self.classes}: a name is empty or listed twice. Name each class once."
            )
        return self


def _names_in(classes: str) -> list[str]:
    return [name.strip() for name in classes.split(",")] if classes else []


def make_inference(model: str, options: ModelOptions) -> Inference:
    """Return the step of `batchmill.steps.predict` that runs a model, and its parameters.

    Raises OptionError.
    """
    is_file = is_model_file(model)
    if not is_file and ":" not in model:
        raise OptionError(
            f"--model {model}: expected a file ({', '.join(_SUFFIXES)}), or a function that makes "
            "the model: package.module:function."
        )
    if is_file and options.weights:
        raise OptionError(
            f"--weights {options.weights}: a model file already contains its weights. Remove "
            "--weights, or give a function that makes the model: --model package.module:function."
        )
    if is_file and not is_url(model):
        _check_file(model)
    given = {
        "weights": model if is_file else options.weights,
        "model": "" if is_file else model,
        "load": options.load,
        "collate": options.collate,
        "device": options.device,
        "classes": _names_in(options.classes),
    }
    step = _STEPS[options.predictions]
    return Inference(step, {name: value for name, value in given.items() if value})


def _check_file(model: str) -> None:
    """Raise OptionError for a file that is not a model. Does not load it, which may take long."""
    if not os.path.isfile(model):
        raise OptionError(f"--model {model}: no such file. Check the path.")
    exported = model.lower().endswith(".pt2")
    names = zipfile.ZipFile(model).namelist() if zipfile.is_zipfile(model) else []
    if any(exported or "/code/" in name or name.endswith("constants.pkl") for name in names):
        return
    raise OptionError(
        f"model {model}: is not {'an exported program' if exported else 'a TorchScript archive'}. "
        "If torch.save has written it (a state_dict or a whole model), name a function that makes "
        "the model: --model package.module:function --weights FILE."
    )
