"""All options of a job, in the groups that the flow, the saved jobs and the commands share."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from batchmill.errors import OptionError
from batchmill.options import (
    ExecutionOptions,
    InputOptions,
    Options,
    PartitionOptions,
    RunOptions,
)
from batchmill.policy import FailurePolicy


@dataclass(frozen=True, kw_only=True)
class OptionGroups:
    """The options of a job. Each field is one group, and one parameter of the flow."""

    inputs: InputOptions = InputOptions()
    partitions: PartitionOptions = PartitionOptions()
    execution: ExecutionOptions = ExecutionOptions()
    failures: FailurePolicy = FailurePolicy()
    run: RunOptions = RunOptions()

    @classmethod
    def from_flat(cls, options: Mapping[str, Any]) -> Self:
        """Sort options by name into their groups. Raises OptionError for an unknown name.

        >>> OptionGroups.from_flat({"retries": 2, "pattern": "*.wav"}).failures.retries
        2
        """
        homes = {name: group for group, model in _models().items() for name in model.model_fields}
        values: dict[str, dict[str, Any]] = {group: {} for group in _models()}
        for name, value in options.items():
            if name not in homes:
                near = difflib.get_close_matches(name, homes, 1)
                hint = f" Did you mean {near[0]}?" if near else ""
                raise OptionError(f"{name}: no such option.{hint}")
            values[homes[name]][name] = value
        groups: dict[str, Any] = {
            group: model(**values[group]) for group, model in _models().items()
        }
        return cls(**groups)

    def parameters(self) -> dict[str, Options]:
        """Return the groups by name, as parameters of the flow."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def _models() -> dict[str, type[Options]]:
    """Return the model of each group."""
    return {field.name: type(field.default) for field in fields(OptionGroups)}  # type: ignore[misc]
