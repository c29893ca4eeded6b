"""How a model is loaded and applied."""

from typing import Literal, Self

from pydantic import model_validator

from batchmill.errors import OptionError
from batchmill.options.base import CommaSeparated, Options, Text


class ModelOptions(Options):
    """Options that load and apply a model."""

    weights: Text = ""
    """File that is passed to the function that makes the model. If its content changes, all inputs
    are executed again."""
    load: Text = ""
    """How inputs are opened: tensor, array, arrays, audio, image, text, json, bytes, or
    package.module:function, which receives the path. Default: by the suffix."""
    collate: Text = "default"
    """How samples are combined into a batch: default (torch), pad (to the longest sample), or
    package.module:function."""
    device: Text = "auto"
    """Device that runs the model: auto, cpu, cuda or cuda:1."""
    classes: CommaSeparated = ""
    """Names of the model's outputs, separated by commas. The rows then have the columns predicted
    and probability."""
    predictions: Literal["rows", "files"] = "rows"
    """Write predictions as rows of the table, or as one file per input (.npy, .pt)."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = names_in(self.classes)
        if not all(names) or len(set(names)) < len(names):
            raise OptionError(
                f"--classes {self.classes}: a name is empty or listed twice. Name each class once."
            )
        return self


def names_in(classes: str) -> list[str]:
    """Return the names in a text that separates them by commas."""
    return [name.strip() for name in classes.split(",")] if classes else []
