"""Options that several commands share: the engine's option groups and the terminal's options."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.options.job_options import (
    ConfinementOptions,
    ExecutionOptions,
    InputOptions,
    JobSettings,
    ModelOptions,
    PartitionOptions,
    RunOptions,
)
from batchmill.core.user_step.params import parse_pairs, read_object
from batchmill.errors import OptionError

# The help lists the groups in this order. The first one has the options that most users need.
MAIN = Group("Main options", sort_key=1)
CLUSTER = Group("Cluster", sort_key=8)
SAVED = Group("Saved settings", sort_key=9)
DISPLAY = Group("Display", sort_key=10)

# A path or URL. cyclopts passes text, because str is the first type. The second type makes shells
# complete the names of files.
Place = str | Path

Step = Annotated[
    str,
    Parameter(group=MAIN, help="The function or class to run: package.module:attribute. Required."),
]
Params = Annotated[
    tuple[str, ...],
    Parameter(
        group=MAIN,
        help="Parameter of the step: key=value. A value that is not JSON is text. Repeatable.",
    ),
]
ParamsFile = Annotated[
    Path | None, Parameter(group=SAVED, help="JSON file with parameters of the step.")
]
Output = Annotated[
    Place,
    Parameter(
        alias="-o",
        group=MAIN,
        help="The dataset: a folder or URL, created if it does not exist. Required.",
    ),
]
StoreName = Annotated[
    str,
    Parameter(
        group=SAVED,
        help="Saved store that contains the dataset: block:NAME. --output is then the dataset's "
        "name in the store.",
    ),
]
Json = Annotated[bool, Parameter(group=DISPLAY, help="Print JSON, for scripts.")]
Verbose = Annotated[
    bool, Parameter(alias="-v", group=DISPLAY, help="Show the logs of Prefect and Ray.")
]
Dataset = Annotated[Place, Parameter(help="The dataset's folder or URL.")]
Manifest = Annotated[
    Place,
    Parameter(
        help="The inputs: a CSV, TSV, JSON Lines or Parquet file, a folder, or a quoted glob."
    ),
]


def _group(title: str, sort_key: int) -> Parameter:
    return Parameter(name="*", group=Group(title, sort_key=sort_key))


Model = Annotated[ModelOptions, _group("Model", 0)]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class JobOptions(JobSettings):
    """The engine's option groups. Their models define the names, defaults and help texts."""

    inputs: Annotated[InputOptions, _group("Inputs", 4)] = InputOptions()
    partitions: Annotated[PartitionOptions, _group("Partitions", 5)] = PartitionOptions()
    execution: Annotated[ExecutionOptions, _group("Execution", 6)] = ExecutionOptions()
    confinement: Annotated[ConfinementOptions, _group("Confinement", 7)] = ConfinementOptions()
    failures: Annotated[FailurePolicy, _group("Failures", 2)] = FailurePolicy()
    run: Annotated[RunOptions, _group("This run", 3)] = RunOptions()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ModelJobOptions(JobOptions):
    """The option groups for a model, which cannot be confined."""

    confinement: Annotated[ConfinementOptions, Parameter(parse=False)] = ConfinementOptions()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """The Ray cluster that runs the shards."""

    ray: Annotated[str, Parameter(group=MAIN)] = ""
    """A Ray cluster: ray://HOST:10001; HOST:6379 or auto from a machine of the cluster; block:NAME
    for a saved cluster; local to start Ray on this machine. Default: this machine, without Ray."""
    runtime_env: Annotated[str, Parameter(group=CLUSTER)] = ""
    """Runtime environment that Ray sets up on its nodes (working_dir, py_modules, pip, env_vars):
    JSON, or a JSON or YAML file."""
    shard_resource: Annotated[tuple[str, ...], Parameter(group=CLUSTER)] = ()
    """Resource that each shard requests: num_gpus=1, num_cpus=4, memory=8G, or a custom resource.
    Repeatable. Default: one CPU per worker, and one GPU for a model."""

    def cluster(self) -> Any:
        """Return the cluster that these options describe; None without one. Raises OptionError."""
        if self == ClusterOptions():
            return None
        runtime_env = read_object(self.runtime_env, "--runtime-env") if self.runtime_env else {}
        amounts = parse_pairs(self.shard_resource, "--shard-resource", "num_gpus=1")
        from batchmill.blocks.ray_cluster import make_cluster

        return make_cluster(self.ray or None, runtime_env, amounts)


def check_given(hint: str = "", /, **values: object) -> None:
    """Raise OptionError that names the missing options, followed by a hint."""
    names = {"manifest": "MANIFEST"}
    missing = [names.get(name, f"--{name}") for name, value in values.items() if not value]
    if missing:
        raise OptionError(f"missing: {', '.join(missing)}. {hint}".rstrip())
