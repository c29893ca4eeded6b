"""A job: what is to be run over what, into where; and everything that can be known beforehand."""

import glob
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pydantic_core import PydanticSerializationError, to_jsonable_python

from batchmill.allowlist import check_step
from batchmill.digests import digest
from batchmill.errors import OptionError, StepError
from batchmill.ledger.ledger import Ledger
from batchmill.ledger.open import open_output
from batchmill.manifest import Manifest, ManifestLike, load_manifest
from batchmill.manifest.listing import is_glob
from batchmill.manifest.saved import listed_manifest
from batchmill.options import InputOptions, PartitionOptions
from batchmill.partitioning import Partitioning, make_partitioning
from batchmill.planning.change_detection import detect_changes
from batchmill.planning.partition_assignment import check_rows, divide_manifest
from batchmill.planning.plan import PLANNED_COLUMNS, Plan, find_records, make_plan
from batchmill.step.fingerprint import differences, identity_of
from batchmill.step.load import Step, load_step
from batchmill.storage import is_url
from batchmill.storage.urls import absolute, same_place


@dataclass(frozen=True, kw_only=True)
class Job:
    """What decides a dataset's content. Paths are absolute, so that any process can use them.

    `search` is the folder that is added to the end of the import path. With a `partitioning`, the
    tables have a column with each input's partition; steps do not see it.
    """

    manifest: str
    step: str
    output: str
    params: Mapping[str, Any] = field(default_factory=dict)
    inputs: InputOptions = InputOptions()
    search: str = ""
    force: bool = False
    partitioning: Partitioning | None = None


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A job that has been checked, and what it has to do.

    `ledger_state` is that from which the plan was made, and was so before the manifest was read;
    `step_changes` says what is another than in the step of which there are records, a line for
    each; `partition_changes` the same of how groups were dealt to partitions before.
    """

    job: Job
    manifest: Manifest
    step: Step
    ledger: Ledger
    plan: Plan
    ledger_state: Sequence[str]
    step_changes: Sequence[str]
    partition_changes: Sequence[str] = ()


def make_job(
    *,
    manifest: str,
    step: str,
    output: str,
    params: Mapping[str, Any] | None = None,
    inputs: InputOptions = InputOptions(),
    partitions: PartitionOptions = PartitionOptions(),
    force: bool = False,
) -> Job:
    """Make a job of what a user gives: paths become absolute, `~` becomes the home folder.

    Raises OptionError.
    """
    root = absolute(inputs.root) if inputs.root else ""
    return Job(
        manifest=_absolute_manifest(manifest),
        step=step,
        output=absolute(output),
        params=_plain_params(params or {}),
        inputs=inputs.model_copy(update={"root": root}),
        search=os.getcwd(),
        force=force,
        partitioning=make_partitioning(partitions),
    )


def check_prune(job: Job, *, prune: bool) -> None:
    """Raise OptionError where pruning would remove rows of files that are being written."""
    if prune and job.inputs.min_age:
        raise OptionError(
            "--prune and --min-age cannot be combined: a file that is too young is not an input of "
            "this run, so its files and rows would be removed. Drop one of them."
        )


def prepare(job: Job, listed: ManifestLike | None = None) -> Prepared:
    """Check a job and plan it. Starts nothing, writes nothing.

    Of the inputs, only those are read whose time is another and whose size is not. `listed` is a
    list or DataFrame that will be the job's manifest once it is saved. Raises ManifestError,
    StepError, OptionError, LedgerError or StoreError.
    """
    check_step(job.step)
    if listed is None and same_place(job.manifest, job.output):
        raise OptionError(
            f"--output {job.output}: is the dataset whose outputs are the inputs. Name another."
        )
    ledger = open_output(job.output)
    # Before the manifest: what is recorded after a look at it may be of inputs that it lacks.
    state = ledger.state()
    # Before the step: of a job that may not be run, nothing is imported.
    manifest = _read_manifest(job, listed)
    step = load_step(job.step, job.params, search=job.search)
    return _plan(job, manifest, step, ledger, state)


def plan_again(prepared: Prepared) -> Prepared:
    """Make the plan anew if the ledger has changed since; raises as `prepare` does.

    Then another run has been at work, maybe on inputs that were not there before: so the manifest
    is read again, too. One that was saved from a list stays as it is.
    """
    job, ledger = prepared.job, prepared.ledger
    state = ledger.state()
    if state == prepared.ledger_state:
        return prepared
    is_list = job.manifest == listed_manifest(job.output)
    manifest = prepared.manifest if is_list else _read_manifest(job)
    return _plan(job, manifest, prepared.step, ledger, state)


def _read_manifest(job: Job, listed: ManifestLike | None = None) -> Manifest:
    return load_manifest(
        job.manifest if listed is None else listed,
        input_column=job.inputs.input_column,
        root=job.inputs.root or None,
        pattern=job.inputs.pattern,
        min_age=job.inputs.min_age,
        partitioning=job.partitioning,
    )


def _length(step: Step) -> int:
    try:
        return len(step.target)
    except Exception as error:
        raise StepError(
            f"step {step.ref}: len() of it raised {type(error).__name__}: {error}. It must tell "
            "how many items it has, one for each row of the manifest."
        ) from error


def _plan(
    job: Job, manifest: Manifest, step: Step, ledger: Ledger, state: Sequence[str]
) -> Prepared:
    step = _fitted(step, manifest)
    records = ledger.records(PLANNED_COLUMNS)
    record_rows = find_records(records, manifest.inputs)
    file_changes = detect_changes(manifest, records, record_rows, step.identity, ledger.store)
    plan = make_plan(
        manifest,
        records,
        step.identity,
        record_rows=record_rows,
        takes_rows=bool({"row", "labels"} & step.given),
        released=ledger.released(),
        changes=file_changes,
        force=job.force,
    )
    changes: list[str] = []
    if job.partitioning:
        check_rows(ledger, _unchecked(plan))
        manifest, changes = divide_manifest(ledger, manifest, job.partitioning)
    return Prepared(
        job=job,
        manifest=manifest,
        step=step,
        ledger=ledger,
        plan=plan,
        ledger_state=state,
        step_changes=_step_changes(ledger, step, plan),
        partition_changes=changes,
    )


def _unchecked(plan: Plan) -> pa.Array:
    """Return the inputs whose recorded rows are replaced, or are in no partition."""
    names = [*plan.pending["input"].chunks, *plan.withdrawn["input"].chunks]
    return pa.concat_arrays(names) if names else pa.array([], pa.string())


def _fitted(step: Step, manifest: Manifest) -> Step:
    """Return a step as it is with this manifest. Raises StepError if they do not fit together."""
    if "labels" in step.given and "label" not in manifest.manifest_columns.column_names:
        raise StepError(
            f"step {step.ref}: takes labels, but the manifest has no column 'label' "
            f"(found: {', '.join(manifest.manifest_columns.column_names) or 'none'}). "
            "Add or rename one."
        )
    if step.kind != "items":
        return step
    items = _length(step)
    if items != len(manifest):
        raise StepError(
            f"step {step.ref}: has {items} items for {len(manifest)} inputs. "
            "Its item i belongs to row i of the manifest."
        )
    # Its item i belongs to row i: with other rows, or in another order, all is another work.
    order = digest("order", *manifest.inputs["input"].to_pylist())
    description = {**step.description, "order": order}
    return replace(step, identity=identity_of(description), description=description)


def _step_changes(ledger: Ledger, step: Step, plan: Plan) -> list[str]:
    """Say what has changed since the step of which there are most records."""
    for identity in plan.stale_steps:
        before = ledger.steps.read(identity)
        if before:
            return differences(before, step.description)
    return []


def _absolute_manifest(manifest: str) -> str:
    if is_url(manifest):
        return absolute(manifest)
    if is_glob(manifest) and not os.path.exists(manifest) and not os.path.isabs(manifest):
        # The folder's own name may have brackets in it.
        return os.path.join(glob.escape(os.getcwd()), manifest)
    return absolute(manifest) if manifest else manifest


def _plain_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return params as JSON knows them: they go to other processes, and into the plan."""
    plain = {}
    for name, value in params.items():
        try:
            plain[name] = to_jsonable_python(value)
        except PydanticSerializationError as error:
            raise OptionError(
                f"parameter {name!r} is a {type(value).__name__}, which cannot be written as JSON. "
                "Give a number, text, list or dict, or a path to a file that has it."
            ) from error
    return plain
