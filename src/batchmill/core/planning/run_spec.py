"""Write and read a run's plan: the settings of the run, and the inputs to execute.

A task receives a range of rows, not a list of inputs. So its cost does not depend on the number of
inputs.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core.digests import input_id
from batchmill.core.layout import PACKS
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.recorded_outputs import addresses_of
from batchmill.core.manifest import Manifest
from batchmill.core.manifest.companions import companion_rows
from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.options.job_options import JobSettings
from batchmill.core.outcome import Outcome
from batchmill.core.partitions.partitioning import count_partitions
from batchmill.core.planning.batching import Layout
from batchmill.core.planning.job import Confinement
from batchmill.core.planning.plan_file import ROWS_PER_STREAM, PlanFile
from batchmill.core.planning.prepare import Prepared
from batchmill.core.storage import open_store
from batchmill.core.storage.addresses import parse_address
from batchmill.core.storage.fingerprints import SeenFile
from batchmill.core.storage.large_tables import take
from batchmill.core.storage.remote import FileStat
from batchmill.core.urls import join

# The number of names that a summary shows.
SHOWN_NAMES = 10
# A multiple of ROWS_PER_STREAM.
_ROWS_AT_A_TIME = 16 * ROWS_PER_STREAM
_CARRIED = "carried"
_COMPANIONS = "companion_files"


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """The settings that all shards of a run share.

    Attributes:
        run: The number of the run.
        counts: The number of inputs by reason, such as new or unchanged.
        resolved: The number of inputs that are not pending, by outcome.
        step: The reference of the step.
        params: The step's parameters.
        search: A folder that is appended to the import path.
        root: The folder or URL that inputs are relative to.
        identity: The step's identity.
        batch_size: Inputs per batch.
        num_workers: Workers per shard.
        token: The token of the run's lease.
        partitions: The number of inputs by partition. Empty without partitions.
        confinement: The rights of the step. None if the step is not confined.
        source_dataset: The dataset that is the manifest. Empty for other manifests.
        source_version: The number of its version. 0 without one.
        names_version: True if the manifest names the version, as DATASET@VERSION.
        can_import: False if other processes cannot import the step.
        can_try: False if `batchmill try` cannot run the step: other processes cannot import it, or
            it has one item per row of the manifest.
        manifest: The path, glob or URL of the manifest.
        options: The options of the job. Those of a single run are not recorded.
        unsampled: The number of inputs to execute that are outside the sample of the run.
        takes_rows: True if the step receives the manifest's other columns.
        file_columns: The names of the manifest's columns with companions of the inputs.
        schema: The Arrow schema of the manifest's other columns, in base64.
        declared: The Arrow type of each column that has one, because the step declares it.
        concurrency: Inputs at a time in each worker.
        pace_seconds: The shortest time between the begin of two attempts in a shard. 0: no limit.
        running: The most shards at a time that keep this limit.
    """

    run: int
    counts: Mapping[str, int]
    resolved: Mapping[str, int]
    step: str
    params: Mapping[str, Any]
    search: str
    root: str
    identity: str
    batch_size: int
    num_workers: int
    token: str = ""
    partitions: Mapping[str, int] = field(default_factory=dict)
    confinement: Confinement | None = None
    source_dataset: str = ""
    source_version: int = 0
    names_version: bool = False
    can_import: bool = True
    can_try: bool = True
    manifest: str = ""
    options: JobSettings = JobSettings()
    takes_rows: bool = False
    unsampled: int = 0
    file_columns: Sequence[str] = ()
    schema: str = ""
    declared: Mapping[str, str] = field(default_factory=dict)
    concurrency: int = 1
    pace_seconds: float = 0.0
    running: int = 1

    @property
    def policy(self) -> FailurePolicy:
        """The failure policy."""
        return self.options.failures

    @property
    def folders(self) -> bool:
        """True if the inputs are folders."""
        return self.options.inputs.input_kind == "folder"

    @property
    def has_partitions(self) -> bool:
        """True if the tables have a column with the partition of each input."""
        return bool(self.options.partitions.partition)

    @property
    def inputs(self) -> int:
        """The number of the manifest's inputs."""
        return sum(count for reason, count in self.counts.items() if reason != "withdrawn")

    @property
    def manifest_schema(self) -> pa.Schema:
        """The Arrow types of the manifest's other columns."""
        return pa.ipc.read_schema(pa.py_buffer(b64decode(self.schema)))

    @property
    def failures_allowed(self) -> int:
        """The number of inputs that may fail."""
        return self.policy.failures_allowed(self.inputs)

    def as_json(self) -> dict[str, Any]:
        """Return the settings as JSON values, for `spec_of`."""
        return asdict(self) | {"options": self.options.recorded()}


def write_run_plan(prepared: Prepared, run: int, layout: Layout, token: str = "") -> None:
    """Write a run's plan, with its inputs in the order of the shards."""
    job, plan, manifest, ledger = prepared.job, prepared.plan, prepared.manifest, prepared.ledger
    types = manifest.manifest_columns.schema.remove_metadata()
    spec = RunSpec(
        run=run,
        counts=plan.counts,
        resolved=plan.resolved,
        step=job.step,
        params=job.params,
        search=job.search,
        root=manifest.root,
        identity=prepared.step.identity,
        batch_size=layout.batch_size,
        num_workers=layout.num_workers,
        token=token,
        partitions=partitions_of(prepared),
        confinement=job.confinement,
        source_dataset=manifest.dataset,
        source_version=manifest.version,
        names_version=bool(manifest.dataset) and "@" in job.manifest.removeprefix(manifest.dataset),
        can_import=job.value is None,
        can_try=job.value is None and prepared.step.kind != "items",
        manifest=job.manifest,
        options=job.options,
        takes_rows=prepared.step.takes_rows,
        unsampled=0 if plan.left is None else len(plan.left),
        file_columns=list(manifest.companions),
        schema=b64encode(types.serialize()).decode(),
        declared=prepared.step.declared.columns if prepared.step.declared else {},
        concurrency=layout.concurrency,
        pace_seconds=layout.pace_seconds,
        running=layout.running,
    )
    order = pa.array(layout.order)

    def streams() -> Iterator[pa.Table]:
        for start in range(0, len(order) or 1, _ROWS_AT_A_TIME):
            rows = take(plan.pending, order[start : start + _ROWS_AT_A_TIME])
            planned = _planned_rows(rows, manifest)
            for first in range(0, len(planned) or 1, ROWS_PER_STREAM):
                yield planned.slice(first, ROWS_PER_STREAM)

    PlanFile(ledger, run).write(spec.as_json(), streams)


def _planned_rows(pending: pa.Table, manifest: Manifest) -> pa.Table:
    """Return what the shards need to know about some inputs."""
    positions = pending.column("position").combine_chunks()
    names = pending.column("input").to_pylist()
    table = pending.select(["position", "input", "size", "mtime_ns", "etag"])
    if pending["companions"].null_count < len(pending):
        table = table.append_column("companions", pending["companions"])
    if manifest.companions:
        companions = manifest.companions.items()
        files = {name: take(seen, positions).to_struct_array() for name, seen in companions}
        table = table.append_column(_COMPANIONS, pa.table(files).to_struct_array())
    table = table.append_column("input_id", pa.array([input_id(name) for name in names]))
    if manifest.manifest_columns.num_columns:
        carried = take(manifest.manifest_columns, positions)
        table = table.append_column(_CARRIED, carried.to_struct_array())
    return table.replace_schema_metadata()


def partitions_of(prepared: Prepared) -> dict[str, int]:
    """Count a manifest's inputs by partition. Empty without partitions."""
    how, partition = prepared.job.partitioning, prepared.partition
    return count_partitions(partition, how) if how and partition is not None else {}


def read_spec(ledger: Ledger, run: int) -> RunSpec:
    """Read the settings that all shards of a run share."""
    return spec_of(PlanFile(ledger, run).settings())


def spec_of(values: Mapping[str, Any]) -> RunSpec:
    """Return the settings of a run, as its plan and its snapshot have them."""
    confinement = values["confinement"]
    return RunSpec(
        **dict(values)
        | {
            "options": JobSettings.from_flat(values["options"]),
            "confinement": confinement and Confinement(**confinement),
        }
    )


def some_inputs(ledger: Ledger, run: int, count: int) -> list[str]:
    """Return the paths or URLs of a few planned inputs whose files existed at planning."""
    root = read_spec(ledger, run).root
    for rows in PlanFile(ledger, run).streams():
        existing = rows.filter(pc.greater_equal(rows["size"], 0)).select(["input", "etag"])
        if len(existing):
            step = -(-len(existing) // count)
            chosen = zip(*(column.to_pylist()[::step] for column in existing.columns), strict=True)
            packs = {name: parse_address(etag or "") for name, etag in chosen}
            return [join(root, place.pack if place else name) for name, place in packs.items()]
    return []


def input_places(spec: RunSpec, names: pa.Array) -> pa.Array:
    """Return the places of inputs below the root: their names, or their addresses in packs.

    Args:
        spec: The settings of the run.
        names: The names of inputs or of their companions.
    """
    # Only the outputs of another dataset can be in packs.
    if spec.source_dataset != spec.root:
        return names
    source = Ledger(open_store(spec.root))
    if PACKS not in source.store.names(""):
        return names
    versions = {snapshot.number: snapshot for snapshot in source.snapshots.versions()}
    version = versions.get(spec.source_version)
    state = source.files.read_state(version) if version else source.state()
    return pc.coalesce(addresses_of(names, state.records(["outputs"])), names)


def carried_rows(inputs: pa.Table) -> list[dict[str, Any]]:
    """Return the manifest's other columns of each input, as plain values."""
    if _CARRIED not in inputs.column_names:
        return [{} for _ in range(len(inputs))]
    return list(inputs.column(_CARRIED).to_pylist())


def companions_of(inputs: pa.Table) -> Iterator[dict[str, SeenFile | None]]:
    """Yield the companions of each input by column, as they were when the run was planned."""
    tables: dict[str, pa.Table] = {}
    if _COMPANIONS in inputs.column_names:
        columns = inputs[_COMPANIONS].combine_chunks()
        tables = {
            column.name: pa.Table.from_struct_array(columns.field(column.name))
            for column in columns.type
        }
    return companion_rows(tables, len(inputs))


def companion_digests(inputs: pa.Table) -> list[str | None]:
    """Return the digest of the further files of each input when the run was planned."""
    if "companions" not in inputs.column_names:
        return [None] * len(inputs)
    return list(inputs["companions"].to_pylist())


def looks_of(inputs: pa.Table) -> Iterator[FileStat]:
    """Yield the size, time and ETag of each input when the run was planned."""
    return map(FileStat, *(inputs[name].to_pylist() for name in FileStat._fields))


def as_planned(outcome: Outcome, inputs: pa.Table, row: int) -> Outcome:
    """Return an outcome with the state that the input had in the plan."""
    (seen,) = looks_of(inputs.slice(row, 1))
    (digest,) = companion_digests(inputs.slice(row, 1))
    return outcome._replace(**seen._asdict(), companions=digest)
