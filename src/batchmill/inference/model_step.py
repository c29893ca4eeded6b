"""Inference as a job: which step runs a model, and with which parameters."""

import os
import zipfile
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

from batchmill.errors import OptionError

Predictions = Literal["rows", "files"]
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


def make_inference(
    *,
    model: str,
    weights: str | None = None,
    load: str | None = None,
    collate: str = "default",
    device: str = "auto",
    classes: Sequence[str] = (),
    predictions: str = "rows",
) -> Inference:
    """Return the step that runs a model over inputs, as `batchmill.steps.predict` describes it.

    `weights` is the file that a function which makes the model is called with.

    Raises OptionError. That the model is there is seen when the job is prepared.
    """
    if predictions not in get_args(Predictions):
        raise OptionError(f"predictions {predictions!r}: expected rows or files.")
    is_file = is_model_file(model)
    if not is_file and ":" not in model:
        raise OptionError(
            f"model {model!r}: expected a file ({', '.join(_SUFFIXES)}), or "
            "package.module:function, which makes the model."
        )
    if is_file and weights is not None:
        raise OptionError(f"--weights {weights}: is for a function that makes a model, not a file.")
    if is_file and os.path.isfile(model):
        _check_file(model)
    given = {
        "weights": model if is_file else weights,
        "model": None if is_file else model,
        "load": load,
        "collate": collate,
        "device": device,
        "classes": list(classes) or None,
    }
    return Inference(_STEPS[predictions], {k: v for k, v in given.items() if v is not None})


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
