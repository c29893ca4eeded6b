"""Reads the inputs, the step and the settings of a shard from the run's plan."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

from batchmill.core.layout import PICKLED_STEP
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.parts import Origin
from batchmill.core.planning.decisions import encode_manifest_columns
from batchmill.core.planning.plan_file import PlanFile
from batchmill.core.planning.run_spec import (
    RunSpec,
    carried_rows,
    companion_digests,
    companions_of,
    looks_of,
    read_spec,
)
from batchmill.core.security.allowlist import check_step
from batchmill.core.storage import is_url
from batchmill.core.storage.addresses import parse_address
from batchmill.core.storage.fingerprints import SeenFile
from batchmill.core.storage.remote import FileStat
from batchmill.core.urls import copy_name, join, last_part
from batchmill.core.user_step.compare_with_plan import PlannedStep
from batchmill.core.user_step.libraries import StepLibraries, imported_files
from batchmill.core.user_step.load import Step, load_step
from batchmill.core.user_step.value.shipping import unpickle_step
from batchmill.runs.inputs.read_input import reads_in_parts
from batchmill.runs.inputs.staging import Companion, Input, StagingArea
from batchmill.runs.shards.shard import Shard, left_in, recorded_in


class ShardInputs:
    """The inputs of a shard that have no outcome yet, with the data needed to execute them.

    The inputs' rows of the plan are in `table`, and their row numbers in `plan_rows`. The other
    columns of the manifest are in `columns`. By input name, `origins` has the origin that the
    ledger records. `check_step` raises StepError if the step is no longer the planned one.
    `libraries` are those of the step.
    """

    def __init__(self, ledger: Ledger, shard: Shard) -> None:
        """Read a shard's inputs, and load the step.

        Raises:
            StepError: The step cannot be loaded on this machine, or is not the planned one.
            LedgerError: The plan cannot be read.
        """
        self.shard = shard
        self.spec = spec = read_spec(ledger, shard.run)
        imported_files.begin()
        with ThreadPoolExecutor(1) as pool:
            rows = pool.submit(PlanFile(ledger, shard.run).rows, shard.start, shard.stop)
            self.step, planned = load_planned_step(ledger, spec, shard.pickle_digest)
        self.table = rows.result()
        self.plan_rows: Sequence[int] = range(shard.start, shard.stop)
        if shard.attempt > 1:
            recorded = recorded_in(ledger, shard.run)
            self.table, self.plan_rows = left_in(self.table, shard, recorded)
        self.columns = carried_rows(self.table)
        self.origins = {
            name: Origin(encode_manifest_columns(row), spec.identity, spec.run, shard.attempt)
            for name, row in zip(self.table["input"].to_pylist(), self.columns, strict=True)
        }
        self.check_step = PlannedStep(self.step, spec.identity, planned).check
        named = self.step.description["libraries"]
        self.libraries = StepLibraries(self.step.target, spec.step, named)

    def __len__(self) -> int:
        return len(self.table)

    @property
    def are_remote(self) -> bool:
        """True if some inputs must be fetched, from a store or from packs."""
        seen = chain(
            zip(self.origins, self.table["etag"].to_pylist(), strict=True),
            ((f.name, f.etag) for files in companions_of(self.table) for f in files.values() if f),
        )
        return is_url(self.spec.root) or any(
            ("://" in name and is_url(name)) or (etag and parse_address(etag))
            for name, etag in seen
        )

    def batch_size(self, *, step_is_batched: bool) -> int:
        """Return the batch size.

        After a loss, an attempt at a batch step uses 1 if only a few inputs are left. One of these
        inputs probably killed the process, and only an input alone in its batch can be identified.
        """
        largest = self.spec.batch_size
        if step_is_batched and self.shard.losses and len(self) <= 2 * largest:
            return 1
        return largest

    def plan_row(self, index: int) -> int:
        """Return the row number in the plan of the input `index`; `stop` if it is past the end."""
        return self.plan_rows[index] if index < len(self.plan_rows) else self.shard.stop

    def items(self, staging: StagingArea) -> list[Input]:
        """Return the inputs, as passed to the step."""
        # A confined step may have no access to the network, so its inputs are fetched whole.
        in_parts = self.step.opens_input and self.spec.confinement is None
        items = [
            Input(
                name,
                identifier,
                row=row,
                companions=self._companions(staging, identifier, companions),
                planned_companions=digest,
                is_folder=self.spec.folders,
                **self._place(staging, identifier, name, planned),
            )
            for name, identifier, row, planned, companions, digest in zip(
                self.origins,
                self.table["input_id"].to_pylist(),
                self.columns,
                looks_of(self.table),
                companions_of(self.table),
                companion_digests(self.table),
                strict=True,
            )
        ]
        if not in_parts:
            return items
        return [item._replace(in_parts=reads_in_parts(item.url, item.planned)) for item in items]

    def _companions(
        self, staging: StagingArea, identifier: str, seen: Mapping[str, SeenFile | None]
    ) -> dict[str, Companion | None]:
        companions: dict[str, Companion | None] = dict.fromkeys(seen)
        for number, (column, file) in enumerate(seen.items()):
            if file:
                # Two files of an input may have the same name.
                place = f"{identifier}.{number}", file.name, FileStat(*file[1:4])
                companions[column] = Companion(file.name, **self._place(staging, *place))
        return companions

    def _place(
        self, staging: StagingArea, folder: str, name: str, planned: FileStat
    ) -> dict[str, Any]:
        """Return the path of a file. If it is remote, also its URL and its state when planned.

        Args:
            staging: The folders of this attempt.
            folder: The name of the folder for the local copy of a remote file.
            name: The name of the file, relative to the root.
            planned: Its state when the run was planned.
        """
        root = self.spec.root
        if staging.fetched is None:  # All inputs are local files.
            return {"path": os.path.join(root, name)}
        is_packed = parse_address(planned.etag or "") is not None
        url = join(root, planned.etag or "") if is_packed else join(root, name)
        if not (is_packed or is_url(url)):
            return {"path": url}
        copy = last_part(url) if is_packed else copy_name(url)
        path = f"{staging.fetched}/{folder}/{copy}"
        return {"path": path, "url": url, "planned": planned}


def pickled_step_name(ledger: Ledger, run: int) -> str:
    """Return the name of the file with a step that other processes cannot import."""
    return f"{ledger.run_folder(run)}/{PICKLED_STEP}"


def load_planned_step(ledger: Ledger, spec: RunSpec, pickle_digest: str) -> tuple[Step, Any]:
    """Load the step of a run.

    Args:
        ledger: The ledger.
        spec: The settings of the run.
        pickle_digest: The digest of the step's pickle, from the process that holds the run. Empty
            if the step is imported. Then no pickle is read.

    Returns:
        The step as this machine has it, and its description in the run's plan.

    Raises:
        StepError: The step cannot be loaded on this machine.
        OptionError: The step may not be run here.
    """
    planned = ledger.read_step(spec.identity)
    if not pickle_digest:
        step = load_step(spec.step, spec.params, search=spec.search, file_columns=spec.file_columns)
        return step, planned or step.description
    check_step(spec.step)
    pickled = ledger.store.read(pickled_step_name(ledger, spec.run))
    step = unpickle_step(pickled, pickle_digest, planned or {}, search=spec.search)
    return step, planned
