"""Every option of a run, defined once: name, type, default, bounds, title and help.

The command line, the flow's form, saved jobs and the Python API use these models.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.options.validation import (
    SIZE_PATTERN,
    CommaSeparated,
    Options,
    Text,
    as_text,
    parse_size,
    unknown_option,
)
from batchmill.errors import OptionError

_LEAST_PACK = 2**20
# The pattern has no backslashes, because Prefect's messages print backslashes doubled.
_RATE_PATTERN = "^ *([0-9]+([.][0-9]+)? */ *(s|min|h))? *$"
_RATE_UNITS = {"s": 1, "min": 60, "h": 3600}

# A watcher announces a file after this number of seconds without a change.
WATCH_MIN_AGE = 60.0


def _as_shares(value: object) -> object:
    """Convert shares in a mapping, for example {"train": 0.8, "test": 0.2}, to text."""
    if isinstance(value, Mapping):
        return ",".join(f"{name}={share}" for name, share in value.items())
    return as_text(value)


class InputOptions(Options):
    """Options that select the inputs of the manifest."""

    input_column: Text = "input"
    """Manifest column that contains the inputs' paths."""
    input_kind: Literal["file", "folder"] = Field(default="file", title="Kind of input")
    """file, or folder if each input is a folder with all of its files, for example a series of
    pictures. Over a folder, its sub-folders are the inputs."""
    file_columns: CommaSeparated = ""
    """Manifest columns that name further files of each input, for example mask, separated by
    commas. The step receives them as parameters of the same names."""
    root: Text = ""
    """Folder that contains all inputs. Relative paths start there. Default: the manifest's
    folder."""
    pattern: Text = "*"
    """For a folder or glob: use only files whose name or relative path matches this glob, or one of
    several globs, separated by commas."""
    min_age: float = Field(default=0, ge=0, allow_inf_nan=False, title="Minimum age in seconds")
    """For a folder or glob: skip files modified less than this many seconds ago. Such files may
    still be incomplete."""
    allow_missing: bool = Field(default=False, title="Allow missing inputs")
    """Run even if most inputs do not exist. Otherwise the job is rejected, because its root or
    manifest is probably wrong."""

    @property
    def file_column_names(self) -> tuple[str, ...]:
        """The names of the file columns."""
        names = (name.strip() for name in self.file_columns.split(","))
        return tuple(dict.fromkeys(name for name in names if name))


class PartitionOptions(Options):
    """Options that assign the rows of the tables to partitions."""

    partition: Annotated[str, BeforeValidator(_as_shares)] = Field(default="", title="Shares")
    """Partitions and their shares, for example train=0.8,validation=0.1,test=0.1 or percentages.
    The tables then have a column named partition."""
    group_by: Text = Field(default="", title="Keep together by column")
    """Manifest column, for example the speaker. Rows with the same value stay in one partition."""
    stratify: Text = Field(default="", title="Stratify by column")
    """Manifest column, for example the label. The rows of each value are divided close to the
    shares."""
    seed: int = 0
    """Random seed for the partition assignment."""


class ExecutionOptions(Options):
    """Options that divide inputs into batches and processes."""

    batch_size: int | None = Field(default=None, ge=1)
    """Inputs per batch. Default: chosen from the number of inputs and cores."""
    num_workers: int | None = Field(default=None, ge=0, title="DataLoader workers")
    """DataLoader workers per shard. Default: one per core, at most 8."""
    concurrency: int | None = Field(default=None, ge=1, title="Inputs at a time in a worker")
    """Inputs of an async step that each worker executes at a time. Default: 32. A step that is not
    async executes one."""
    rate: Text = Field(default="", json_schema_extra={"pattern": _RATE_PATTERN})
    """Begin at most this number of inputs in a time, on all workers together, for example 20/s or
    600/min. For async steps. Default: no limit."""
    pack: Text = Field(default="", title="Pack size", json_schema_extra={"pattern": SIZE_PATTERN})
    """Write outputs into tar files of about this size, for example 256MB, instead of one file each.
    It is faster for many small files. Default: one file each."""
    log_steps: Literal["off", "debug", "info", "warning", "error"] = Field(
        default="off", title="Log of the steps"
    )
    """Send the printed text of the step, and its log from this level, to Prefect, which shows it
    with the run. With off, nothing is sent."""

    @property
    def rate_per_second(self) -> float:
        """The most inputs that begin in a second; 0 for no limit.

        >>> ExecutionOptions(rate="600/min").rate_per_second
        10.0
        """
        number, _, unit = self.rate.replace(" ", "").partition("/")
        return float(number) / _RATE_UNITS[unit] if number else 0.0

    @model_validator(mode="after")
    def _check(self) -> Self:
        is_rate = re.search(_RATE_PATTERN, self.rate)
        if not is_rate or (self.rate.strip() and not self.rate_per_second):
            raise OptionError(f"--rate {self.rate}: expected a rate such as 20/s or 600/min.")
        if self.pack.strip() and self.pack_bytes < _LEAST_PACK:
            raise OptionError(
                f"--pack {self.pack}: a pack is for many files. Give 1MB or more, such as 256MB."
            )
        return self

    @property
    def log_level(self) -> str:
        """The level from which the log of the steps is sent; empty if nothing is sent."""
        return "" if self.log_steps == "off" else self.log_steps

    @property
    def pack_bytes(self) -> int:
        """The size of a pack in bytes; 0 for one file per output."""
        return parse_size(self.pack, "--pack") if self.pack.strip() else 0


class ConfinementOptions(Options):
    """Options that confine the step to a few folders."""

    confine: bool = Field(default=False, title="Confine the step")
    """The step may change files only in its output folder and in a temporary folder, and may not
    open TCP connections. Needs Linux 6.7 or newer."""
    allow_write: CommaSeparated = Field(default="", title="Folders that the step may change")
    """Further folders or files that a confined step may change, separated by commas."""
    allow_network: bool = Field(default=False, title="Allow TCP connections")
    """A confined step may open TCP connections."""


class RunOptions(Options):
    """Options of a single run. A saved job does not contain them."""

    force: bool = False
    """Execute all inputs again, including those that are already done. If the run is stopped, the
    same command resumes it."""
    replace_step: bool = Field(default=False, title="Replace the step")
    """The dataset may have the results of another step. They are replaced. Without this option,
    such a run is rejected."""
    accept_change: bool = Field(default=False, title="Accept the changed code")
    """Keep the outputs that an earlier version of the step's code made, because the change does not
    affect them. Only inputs that did not change are kept."""
    verify_change: int = Field(default=0, ge=0, title="Verify the changed code")
    """If the step's code changed, or a library that counts, execute a random sample of this number
    of inputs. If all results are equal, keep the outputs of all inputs that did not change, for
    example 300. 0: execute all inputs."""
    libraries: Literal["note", "count"] = Field(default="note", title="Changed libraries")
    """If a library of the step has another version than the results: note says so, and keeps them;
    count treats it as a change of the code."""
    sample: int = Field(default=0, ge=0)
    """Execute at most this number of inputs, chosen by size, suffix, folder and label, and forecast
    the time of the others. 0: execute all inputs."""
    prune: bool = False
    """Remove files and rows of inputs that are no longer in the manifest."""
    prune_failed: bool = Field(default=False, title="Prune results of failed inputs")
    """Remove the files and rows that inputs had before they failed. Without this option, the last
    good result stays until the input succeeds."""
    keep_versions: int = Field(default=1, ge=0, title="Earlier versions to keep")
    """Number of earlier versions of the dataset to keep. A program that reads one of them can
    continue. Versions with a name always stay."""
    wait: bool = Field(default=False, title="Wait for another run")
    """If another run uses the dataset, wait until that run has ended."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.force + self.accept_change + bool(self.verify_change) > 1:
            raise OptionError(
                "--force, --accept-change and --verify-change cannot be combined: the first "
                "executes all inputs again, the second keeps the outputs without a comparison, and "
                "the third compares a sample. Choose one."
            )
        return self


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


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """The options of a job. Each field is one group, and one parameter of the flow."""

    failures: FailurePolicy = FailurePolicy()
    inputs: InputOptions = InputOptions()
    execution: ExecutionOptions = ExecutionOptions()
    partitions: PartitionOptions = PartitionOptions()
    run: RunOptions = RunOptions()
    confinement: ConfinementOptions = ConfinementOptions()

    @classmethod
    def from_flat(cls, options: Mapping[str, Any]) -> Self:
        """Sort options by name into their groups. Raises OptionError for an unknown name.

        >>> JobSettings.from_flat({"retries": 2, "pattern": "*.wav"}).failures.retries
        2
        """
        models: dict[str, Any] = {field.name: type(field.default) for field in fields(cls)}
        known = [name for model in models.values() for name in model.model_fields]
        for name in options:
            if name not in known:
                raise OptionError(unknown_option(name, known))
        groups = {
            group: model(**{name: options[name] for name in model.model_fields if name in options})
            for group, model in models.items()
        }
        return cls(**groups)

    def recorded(self) -> dict[str, Any]:
        """Return all options by name, without those of a single run, for `from_flat`."""
        groups = [group for name, group in self.parameters().items() if name != "run"]
        return {name: value for group in groups for name, value in group.model_dump().items()}

    def parameters(self) -> dict[str, Options]:
        """Return the groups by name, as parameters of the flow."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
