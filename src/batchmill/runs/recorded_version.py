"""The results of a version of a dataset, with what made them: inputs, step and settings."""

import json
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import time
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.snapshots import Snapshot
from batchmill.core.ledger.state import OK, State
from batchmill.core.manifest import Manifest, load_manifest
from batchmill.core.options.job_options import ExecutionOptions, InputOptions, JobSettings
from batchmill.core.planning.changed_files import FileChanges, detect_changes
from batchmill.core.planning.decisions import Criteria
from batchmill.core.planning.forecast_sample import random_sample
from batchmill.core.planning.job import Job
from batchmill.core.planning.plan import PLANNED_COLUMNS, make_plan, match_records
from batchmill.core.planning.prepare import Prepared
from batchmill.core.planning.run_spec import RunSpec, spec_of
from batchmill.core.storage import is_url, open_store
from batchmill.core.storage.name_search import rows_of
from batchmill.core.user_step.compare_with_plan import differences_from_plan
from batchmill.core.user_step.load import Step
from batchmill.core.user_step.value.shipping import pickle_digest
from batchmill.errors import OptionError
from batchmill.runs.execute_again import RESULT_COLUMNS
from batchmill.runs.shards.shard_inputs import load_planned_step, pickled_step_name

_COLUMNS = (*PLANNED_COLUMNS, *RESULT_COLUMNS, "carried")


@dataclass(frozen=True, kw_only=True)
class RecordedVersion:
    """The results of a version, and what made them.

    Attributes:
        ledger: The ledger.
        version: The version.
        spec: The settings of its run, with the folder or URL of the inputs on this machine.
        step: The step, as this machine has it.
        step_change: How it differs from the recorded one. Empty if it does not.
        state: The inputs that are ok in the version.
    """

    ledger: Ledger
    version: Snapshot
    spec: RunSpec
    step: Step
    step_change: str
    state: State

    @classmethod
    def read(
        cls, ledger: Ledger, dataset: str, version: Snapshot, *, root: str, trust_step: bool
    ) -> "RecordedVersion":
        """Read a version, and load its step on this machine.

        Args:
            ledger: The ledger.
            dataset: The path or URL of the dataset, for messages.
            version: The version.
            root: The folder or URL of the inputs. Empty: the recorded one.
            trust_step: Read a step of a notebook from the dataset.

        Raises:
            OptionError: The step is not recorded, or cannot be used.
            StepError: The step cannot be loaded here.
        """
        described = ledger.read_step(version.step)
        if described is None:
            raise OptionError(
                f"{dataset}: the step of version {version.number} is not recorded, so its results "
                "cannot be made again. Prove a version of a newer batchmill."
            )
        spec = spec_of(version.settings)
        # On another machine, the modules are in its working directory.
        search = spec.search if os.path.isdir(spec.search) else os.getcwd()
        step = _load_step(ledger, replace(spec, search=search), trusted=trust_step)
        change = ""
        if step.identity != version.step:
            # Another machine may have other optional modules, as a worker of a run may.
            differences = differences_from_plan(step, described)
            change = f"the step differs here: {differences[0]}" if differences else ""
            step = replace(step, identity=version.step)
        state = ledger.files.read_state(version).listed()
        return cls(
            ledger=ledger,
            version=version,
            spec=replace(_with_inputs_at(root or spec.root, spec), search=search),
            step=step,
            step_change=change,
            state=state.select(pc.equal(state.table["outcome"], OK)),
        )

    def chosen(self, count: int, seed: int) -> pa.Table:
        """Return the records of a random sample. A `count` of 0 means all."""
        is_chosen = np.zeros(len(self.state), bool)
        is_chosen[random_sample(len(is_chosen), count or len(is_chosen), seed)] = True
        return self.state.select(is_chosen).records(_COLUMNS)

    def manifest(self, records: pa.Table) -> Manifest:
        """Return a manifest with the inputs of some records, as they are now."""
        root = self.spec.root
        if not is_url(root) and not os.path.isdir(root):
            raise OptionError(
                f"{root}: this folder of the inputs does not exist here. Give it with --root."
            )
        names = records["input"]
        if self.spec.source_dataset:
            return self._part_of_source(names)
        carried = [json.loads(text) for text in records["carried"].to_pylist()]
        rows = [
            {**row, "input": name} for name, row in zip(names.to_pylist(), carried, strict=True)
        ]
        manifest = load_manifest(
            # With its own types, pandas would change numbers and empty cells.
            pd.DataFrame(rows, dtype=object),
            file_columns=self.spec.file_columns,
            folders=self.spec.folders,
            root=root,
            allow_outside=True,
        )
        columns = self._typed(manifest.manifest_columns, carried)
        return replace(manifest, manifest_columns=columns)

    def _typed(self, columns: pa.Table, rows: list[dict[str, Any]]) -> pa.Table:
        """Return the other columns with the types that the run had. JSON has no dates."""
        for field in self.spec.manifest_schema:
            place = columns.schema.get_field_index(field.name)
            if place >= 0:
                values = [_typed_value(row.get(field.name), field.type) for row in rows]
                columns = columns.set_column(place, field.name, pa.array(values, field.type))
        return columns

    def _part_of_source(self, names: pa.ChunkedArray) -> Manifest:
        """Return the listed outputs of the dataset that this one was made from."""
        source, version = self.spec.source_dataset, self.spec.source_version
        whole = load_manifest(
            f"{source}@{version}" if version else source, file_columns=self.spec.file_columns
        )
        return whole.take(rows_of(names, whole.inputs["input"]).drop_null())

    def job(self, manifest: Manifest, records: pa.Table) -> Prepared:
        """Return a job over the inputs of some records. Its pending inputs have changed."""
        spec, step = self.spec, self.step
        matched = match_records(records, manifest.inputs)
        detected = detect_changes(
            manifest, matched.done, {step.identity}, self.ledger.store, folders=spec.folders
        )
        # A missing output is no reason not to make it again.
        criteria = Criteria(
            step.identity,
            takes_rows=step.takes_rows,
            changes=FileChanges(contents=detected.contents),
        )
        execution = ExecutionOptions(batch_size=spec.batch_size)
        policy = spec.policy.model_copy(update={"max_failures": "100%", "expect": ()})
        inputs = InputOptions(
            input_kind="folder" if spec.folders else "file",
            file_columns=",".join(spec.file_columns),
        )
        return Prepared(
            job=Job(
                manifest=manifest.name,
                step=spec.step,
                output=self.ledger.store.url,
                params=spec.params,
                search=spec.search,
                options=JobSettings(inputs=inputs, execution=execution, failures=policy),
                confinement=spec.confinement,
            ),
            manifest=manifest,
            step=step,
            ledger=self.ledger,
            plan=make_plan(manifest, matched, criteria),
            state=self.state,
            changes=(),
            step_changes=(),
        )


def _with_inputs_at(root: str, spec: RunSpec) -> RunSpec:
    """Return the settings with the inputs below a root, which may be a dataset.

    If a run has removed the version of that dataset, the present one is used. It has other outputs
    of changed inputs only, and these are found.
    """
    version = spec.source_version
    versions = Ledger(open_store(root)).snapshots.versions() if version else []
    return replace(
        spec,
        root=root,
        source_dataset=spec.source_dataset and root,
        source_version=version if version in {one.number for one in versions} else 0,
    )


def _typed_value(value: Any, kind: pa.DataType) -> pa.Scalar | None:
    """Return a value of a record with a type. None if it had another type when it was recorded."""
    with suppress(pa.ArrowException, TypeError, ValueError, OverflowError):
        if isinstance(value, str) and pa.types.is_time(kind):
            value = time.fromisoformat(value)
        elif isinstance(value, str) and pa.types.is_duration(kind):
            value = pd.Timedelta(value)
        elif pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
            return pa.scalar(value, pa.string()).cast(kind)
        return pa.scalar(value, kind)
    return None


def _load_step(ledger: Ledger, spec: RunSpec, *, trusted: bool) -> Step:
    """Load the step of a run. A step that cannot be imported was kept with the run."""
    name = pickled_step_name(ledger, spec.run)
    pickled = ledger.store.read(name) if ledger.store.exists(name) else b""
    if pickled and not trusted:
        raise OptionError(
            f"--execute: the step {spec.step} is in the dataset, not in a module, and would run "
            "with your rights. If you trust the authors of the dataset, add --trust-step."
        )
    step, _ = load_planned_step(ledger, spec, pickle_digest(pickled))
    step = replace(step, pickled=pickled)
    if step.kind == "items":
        raise OptionError(
            f"--execute: the step {spec.step} has one item per row of its manifest, so it cannot "
            "run on a sample. Run its job into another folder, and compare the tables."
        )
    return step
