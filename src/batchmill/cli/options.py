"""Options that several commands share."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from batchmill.errors import OptionError
from batchmill.policy import DEFAULT_RETRIES, DEFAULT_TIMEOUT_SECONDS
from batchmill.step.params import parse_params

WORK = Group("What to do", sort_key=1)
PARTITIONS = Group("Which partition its rows are in", sort_key=2)
BATCHES = Group("How to divide it", sort_key=3)
CLUSTER = Group("Where to run it", sort_key=4)
FAILURES = Group("What to do about failures", sort_key=5)

Step = Annotated[
    str, Parameter(name="--step", group=WORK, help="Function or class: package.module:attribute.")
]
Params = Annotated[
    tuple[str, ...],
    Parameter(
        name="--param",
        group=WORK,
        negative=(),
        show_default=False,
        help="A parameter of the step, key=value; may be given again. JSON, else text.",
    ),
]
ParamsFile = Annotated[
    Path | None, Parameter(name="--params", group=WORK, help="JSON file with parameters.")
]
Json = Annotated[
    bool, Parameter(name="--json", negative=(), show_default=False, help="Print JSON, for scripts.")
]
Dataset = Annotated[str, Parameter(help="The dataset's folder.")]
Manifest = Annotated[
    str, Parameter(help="CSV, TSV, JSON Lines or Parquet file, a folder, or a quoted glob.")
]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DatasetOptions:
    """What a job needs besides its manifest and its step.

    None is not given: then the flow's default counts, or what is saved.
    """

    output: Annotated[
        str | None,
        Parameter(
            group=WORK,
            alias="-o",
            help="The dataset's folder or URL; made if it is not there. Required.",
        ),
    ] = None
    input_column: Annotated[
        str | None,
        Parameter(
            group=WORK, help="Column of the manifest that has the inputs' paths. Default: input."
        ),
    ] = None
    root: Annotated[
        str | None,
        Parameter(
            group=WORK,
            help="Folder that relative inputs are relative to, and must not leave. "
            "Default: the manifest's.",
        ),
    ] = None
    pattern: Annotated[
        str | None,
        Parameter(group=WORK, help="Of a folder, only files whose name or path fits. Default: *."),
    ] = None
    settle: Annotated[
        float | None,
        Parameter(
            group=WORK,
            help="Of a folder or glob, leave out files written to within so many seconds: somebody "
            "may be writing them still. Default: 0.",
        ),
    ] = None
    partition: Annotated[
        str | None,
        Parameter(
            group=PARTITIONS,
            help="Partitions and their shares, as train=0.8,validation=0.1,test=0.1 or in percent. "
            "The tables then have a column partition. Default: none.",
        ),
    ] = None
    group_by: Annotated[
        str | None,
        Parameter(
            group=PARTITIONS,
            help="Column of the manifest, as of the speaker; rows with the same value stay in one "
            "partition. Default: each input for itself.",
        ),
    ] = None
    stratify: Annotated[
        str | None,
        Parameter(
            group=PARTITIONS,
            help="Column of the manifest, as of the label; the groups of each value come near the "
            "shares.",
        ),
    ] = None
    seed: Annotated[
        int | None, Parameter(group=PARTITIONS, help="Another one divides otherwise. Default: 0.")
    ] = None
    force: Annotated[
        bool,
        Parameter(
            group=WORK, negative=(), show_default=False, help="Execute all inputs, done or not."
        ),
    ] = False
    batch_size: Annotated[
        int | None,
        Parameter(
            group=BATCHES,
            help="Inputs in a batch, the work of one process. Default: from inputs and cores.",
        ),
    ] = None
    num_workers: Annotated[
        int | Literal["auto"] | None,
        Parameter(
            group=BATCHES,
            help="DataLoader workers in each shard; 0 is one, too. auto: as many as suit the step, "
            "seen on a few inputs. Default: the cores, at most 8.",
        ),
    ] = None

    retries: Annotated[
        int | None,
        Parameter(
            group=FAILURES,
            help="How often an input may be executed again for its own faults. "
            f"Default: {DEFAULT_RETRIES}.",
        ),
    ] = None
    timeout: Annotated[
        float | None,
        Parameter(
            group=FAILURES,
            help="Seconds at one input, after which its worker is killed. "
            f"Default: {DEFAULT_TIMEOUT_SECONDS:g}.",
        ),
    ] = None
    memory_limit: Annotated[
        str | None,
        Parameter(
            group=FAILURES,
            help="Memory at one input, as 2G, beyond which its worker is killed. Default: what "
            "the machine has.",
        ),
    ] = None
    max_failures: Annotated[
        str | None,
        Parameter(
            group=FAILURES,
            help="How many inputs may fail, as 3 or 2%, before the run counts as failed. "
            "Default: 0.",
        ),
    ] = None
    fail_fast: Annotated[
        bool | None,
        Parameter(
            group=FAILURES,
            negative=(),
            show_default=False,
            help="Then stop early; the rest is pending.",
        ),
    ] = None

    def parameters(self, manifest: str | None, required: Mapping[str, Any]) -> dict[str, Any]:
        """Return the flow's parameters that these options and the manifest describe.

        Raises OptionError, also where one of the `required` values was not given.
        """
        required = {"MANIFEST": manifest, **required, "--output": self.output}
        missing = [name for name, given in required.items() if given is None]
        if missing:
            raise OptionError(f"missing: {', '.join(missing)}.")
        given = {
            "manifest": manifest,
            "output": self.output,
            "input_column": self.input_column,
            "root": self.root,
            "pattern": self.pattern,
            "settle_seconds": self.settle,
            "partition": self.partition,
            "group_by": self.group_by,
            "stratify": self.stratify,
            "seed": self.seed,
            "force": self.force,
            "batch_size": self.batch_size,
            "num_workers": self.num_workers,
            "retries": self.retries,
            "timeout_seconds": self.timeout,
            "memory_limit": self.memory_limit,
            "max_failures": self.max_failures,
            "fail_fast": self.fail_fast,
        }
        return {name: value for name, value in given.items() if value is not None}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class JobOptions(DatasetOptions):
    """What `run` and `plan` need to know of a job besides its manifest."""

    step: Annotated[
        str | None,
        Parameter(group=WORK, help="Function or class: package.module:attribute. Required."),
    ] = None
    param: Params = ()
    params: ParamsFile = None

    def job_parameters(self, manifest: str | None) -> dict[str, Any]:
        """Return the flow's parameters that these options and the manifest describe.

        Raises OptionError.
        """
        try:
            parameters = self.parameters(manifest, {"--step": self.step})
        except OptionError as error:
            raise OptionError(
                f"{error} Give all three; or, to `run`, a saved job: --job."
            ) from error
        return parameters | {"step": self.step, "params": parse_params(self.param, self.params)}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Where and how a job is run; nothing of it shows in the dataset."""

    store: Annotated[
        str | None,
        Parameter(
            group=WORK,
            help="Where the dataset is: block:NAME of a saved store. --output is a name in it.",
        ),
    ] = None
    ray: Annotated[
        str | None,
        Parameter(
            group=CLUSTER,
            help="A Ray cluster: ray://HOST:10001, HOST:6379, auto, block:NAME for a saved one, or "
            "local for a Ray that is started on this machine. Default: no Ray, this machine.",
        ),
    ] = None
    runtime_env: Annotated[
        str | None,
        Parameter(
            group=CLUSTER,
            help="What Ray brings to its machines (working_dir, py_modules, pip, env_vars): JSON, "
            "or a JSON or YAML file.",
        ),
    ] = None
    shard_resource: Annotated[
        tuple[str, ...],
        Parameter(
            group=CLUSTER,
            negative=(),
            show_default=False,
            help="What each shard asks for, as num_gpus=1, num_cpus=4, memory=8G, or a resource of "
            "your own; may be given again. Default: a CPU for each of its workers.",
        ),
    ] = ()
    prune: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Remove files and rows of inputs that the manifest no longer lists.",
        ),
    ] = False
    wait: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Wait for the end of another run over the dataset.",
        ),
    ] = False
    json: Json = False
    verbose: Annotated[
        bool,
        Parameter(
            alias="-v",
            negative=(),
            show_default=False,
            help="Show what Prefect and Ray have to say.",
        ),
    ] = False


NO_DATASET_OPTIONS = DatasetOptions()
NO_OPTIONS = JobOptions()
AS_USUAL = RunOptions()
