"""Loads a model by a reference: an exported program, a TorchScript archive, or a factory."""

import inspect
import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from batchmill.core.security.allowlist import refused_models
from batchmill.core.user_step.import_reference import resolve_reference
from batchmill.errors import OptionError, StepError
from batchmill.steps.inference.model_step import is_model_file

Model = Callable[..., Any]


def choose_device(device: str) -> torch.device:
    """Return a torch device. `auto` is a GPU if the machine has one, otherwise the CPU.

    Raises:
        StepError: The name is not a device, or torch finds no GPU.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise StepError(
            f"device {device!r}: is not a device. Use auto, cpu, cuda or cuda:1."
        ) from error
    if chosen.type != "cuda":
        return chosen
    count = torch.cuda.device_count()
    if (chosen.index or 0) >= count:
        names = ", ".join(f"cuda:{number}" for number in range(count)) or "no GPU"
        raise StepError(
            f"device {device!r}: torch {torch.__version__} finds {names} on this machine. Use auto "
            "or another device. Or install torch for CUDA, and on a cluster request a GPU: "
            "--shard-resource num_gpus=1."
        )
    return chosen


def load_model(model: str, device: torch.device, weights: str | None = None) -> Model:
    """Return a model on a device, in evaluation mode. Each process loads it once.

    Args:
        model: The path of a `.pt2` file (`torch.export`) or of a TorchScript archive (`.pt`,
            `.pth`, `.ts`, `.torchscript`), or a reference `package.module:name`. The reference
            names a model, or a function or class that creates a model.
        device: The device to load the model to.
        weights: The path of saved weights, the only argument of the function or class. Without it,
            the function or class is called without arguments.

    Raises:
        StepError: The model cannot be loaded.
        OptionError: This machine does not allow loading the model.
    """
    file = model if is_model_file(model) else weights
    if file is None:
        return _make(model, device, None)
    for refused in refused_models([file]).values():
        raise OptionError(f"model {refused}")
    try:
        status = os.stat(file)
    except OSError as error:
        raise StepError(f"model {file}: {error.strerror}. Check the path.") from error
    seen = (status.st_mtime_ns, status.st_size)
    return _make(model, device, weights, *seen) if weights else _load_file(model, device, *seen)


# The shards that run in a process one after another use the same model. A second cached model would
# only waste memory.
@lru_cache(maxsize=1)
def _load_file(path: str, device: torch.device, mtime_ns: int, size: int) -> Model:  # noqa: ARG001
    try:
        if path.lower().endswith(".pt2"):
            from torch.export.passes import move_to_device_pass

            made: Model = move_to_device_pass(torch.export.load(path), device).module()
        else:
            scripted = torch.jit.load(path, map_location=device)  # type: ignore[no-untyped-call]
            made = scripted.to(device).eval()
        return made
    except torch.OutOfMemoryError as error:
        raise _too_large(path, device, error) from error
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise StepError(
            f"model {path}: is not a file of torch.export.save (.pt2) or torch.jit.save (.pt). For "
            "saved weights, give a function that creates the model, and the file as weights. "
            f"({type(error).__name__}: {reason})"
        ) from error


@lru_cache(maxsize=1)
def _make(reference: str, device: torch.device, weights: str | None, *_seen: int) -> Model:
    return make_model(resolve_reference(reference, "model"), reference, device, weights)


def make_model(
    made: Any, reference: str, device: torch.device, weights: str | None = None
) -> Model:
    """Return a model on a device, in evaluation mode.

    Args:
        made: The model, or a function or class that creates it.
        reference: The name of `made`, for messages.
        device: The device to load the model to.
        weights: As in `load_model`.

    Raises:
        StepError: The model cannot be made.
    """
    if not isinstance(made, torch.nn.Module):
        if not callable(made):
            raise StepError(
                f"model {reference}: is a {type(made).__name__}; expected a model, or a function "
                "or class that creates one."
            )
        try:
            made = made() if weights is None else made(weights)
        except Exception as error:
            raise StepError(
                f"model {reference}: calling it failed with {type(error).__name__}: {error}."
            ) from error
    elif weights is not None:
        raise StepError(
            f"model {reference}: is a model, so it cannot load the weights {weights}. Name a "
            "function that takes the path of the weights, or remove the weights."
        )
    if not callable(made):
        raise StepError(
            f"model {reference}: returned a {type(made).__name__}, which cannot be called."
        )
    if isinstance(made, torch.nn.Module):
        try:
            made = made.to(device).eval()
        except torch.OutOfMemoryError as error:
            raise _too_large(reference, device, error) from error
    ready: Model = made
    return ready


def check_factory(made: Any, reference: str, weights: str | None) -> None:
    """Check that a function or class can be called to make a model, without a call.

    Args:
        made: As in `make_model`.
        reference: As in `make_model`.
        weights: As in `load_model`.

    Raises:
        StepError: It needs other arguments. It may be the model itself.
    """
    if isinstance(made, torch.nn.Module) or not callable(made):
        return
    try:
        inspect.signature(made).bind(*([] if weights is None else [weights]))
    except TypeError as error:
        given = "no argument" if weights is None else "the path of the weights"
        raise StepError(
            f"model {reference}: is called with {given} to make the model, but {error}. If it is "
            "the model itself, name a function that returns it: `def make(): return net`."
        ) from error
    except ValueError:
        return  # Code in C may have no signature.


def _too_large(model: str, device: torch.device, error: Exception) -> StepError:
    reason = str(error).strip().partition("\n")[0]
    return StepError(
        f"model {model}: {device} has not enough free memory. Another process may use the memory, "
        f"such as another shard. A higher --num-workers runs fewer shards at a time. ({reason})"
    )
