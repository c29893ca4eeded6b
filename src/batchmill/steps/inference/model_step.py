"""Convert a model and its options to a step with parameters."""

import os
import zipfile
from typing import Any, NamedTuple

from batchmill.core.options.job_options import ModelOptions, names_in
from batchmill.core.storage import is_url
from batchmill.errors import OptionError

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
    params = predict_params(options)
    params["weights" if is_file else "model"] = model
    return Inference(_STEPS[options.predictions], params)


def predict_params(options: ModelOptions) -> dict[str, Any]:
    """Return the parameters of a step of `batchmill.steps.predict`, without the model."""
    given = {**options.model_dump(exclude={"predictions"}), "classes": names_in(options.classes)}
    return {name: value for name, value in given.items() if value}


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
