"""All options of a job, in the groups that the flow, the saved jobs and the commands share."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from batchmill.errors import OptionError
from batchmill.options.base import Options, unknown_option
from batchmill.options.failure_policy import FailurePolicy
from batchmill.options.groups import (
    ConfinementOptions,
    ExecutionOptions,
    InputOptions,
    PartitionOptions,
    RunOptions,
)


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """The options of a job. Each field is one group, and one parameter of the flow."""

    inputs: InputOptions = InputOptions()
    partitions: PartitionOptions = PartitionOptions()
    execution: ExecutionOptions = ExecutionOptions()
    confinement: ConfinementOptions = ConfinementOptions()
    failures: FailurePolicy = FailurePolicy()
    run: RunOptions = RunOptions()

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

    def parameters(self) -> dict[str, Options]:
        """Return the groups by name, as parameters of the flow."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
