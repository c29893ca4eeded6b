"""Prove a dataset: make a random sample of its results again, and compare."""

import json
import os
import platform
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from batchmill.errors import OptionError, StoreError
from batchmill.ledger.ledger import Ledger
from batchmill.ledger.open import open_ledger
from batchmill.ledger.parts import WITHDRAWN
from batchmill.ledger.proofs import Proof
from batchmill.ledger.versions import Version, records_of
from batchmill.manifest import Manifest, load_manifest
from batchmill.manifest.file_stats import MISSING_SIZE
from batchmill.options.groups import ExecutionOptions, InputOptions
from batchmill.planning.change_detection import FileChanges, detect_changes
from batchmill.planning.decisions import Criteria
from batchmill.planning.job import Job
from batchmill.planning.plan import PLANNED_COLUMNS, make_plan, match_records
from batchmill.planning.prepare import Prepared
from batchmill.planning.run_spec import RunSpec, read_spec
from batchmill.planning.sample import random_sample
from batchmill.publishing.metadata_table import metadata_table
from batchmill.reading.published import read_published
from batchmill.runs.discarded_job import part_of
from batchmill.runs.made_again import RESULT_COLUMNS, ResultDifference, differences, make_again
from batchmill.shards.planned_step import load_planned_step, pickled_step_name
from batchmill.step.load import Step
from batchmill.step.packages import imported_packages
from batchmill.step.planned import differences_from_plan
from batchmill.step.value.shipping import pickle_digest
from batchmill.storage import if_exists, is_url
from batchmill.storage.fingerprints import hash_bytes
from batchmill.storage.large_tables import select, take
from batchmill.storage.name_search import rows_of

_SHOWN = 10
_COLUMNS = {*PLANNED_COLUMNS, *RESULT_COLUMNS, "result_run"}
_MISSING, _CHANGED = "the input does not exist here", "the input has changed"
_OLDER = "an earlier version of the step made it"


@dataclass(frozen=True, kw_only=True)
class ProofOptions:
    """The part of a dataset to prove, and the place of its inputs.

    Attributes:
        count: The number of results to make again. 0: all.
        version: The number or name of the version. None: the last one.
        seed: The seed of the random sample. None: a new one.
        root: The folder or URL of the inputs on this machine. Empty: the recorded one.
        deep: Also prove the dataset that this one was made from, and so on.
        trust_step: Read a step of a notebook from the dataset. It is code, which then runs here.
    """

    count: int = 0
    version: int | str | None = None
    seed: int | None = None
    root: str = ""
    deep: bool = False
    trust_step: bool = False


def prove(
    dataset: str,
    options: ProofOptions = ProofOptions(),
    *,
    on_begin: Callable[[int], None] = lambda _: None,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[Proof]:
    """Make results of a version again on this machine, and compare them with its records.

    The step is imported here. Nothing is written.

    Args:
        dataset: The path or URL of the dataset.
        options: The part to prove, and the place of its inputs.
        on_begin: Called with the number of results to make, before they are made.
        is_cancelled: Returns True if the execution must end early.

    Yields:
        The proof of the dataset. With `deep`, also those of the datasets that it was made from.

    Raises:
        OptionError: There is no such version, or its step or its results are unknown.
        StepError: The step cannot be loaded here.
        StoreError: A store cannot be read.
    """
    ledger = open_ledger(dataset)
    version = _version(ledger, dataset, options.version)
    recorded = _Recorded.read(ledger, dataset, version, options)
    yield _prove(dataset, recorded, options, on_begin, is_cancelled)
    source = recorded.spec.source_dataset
    if options.deep and source:
        deeper = replace(options, version=recorded.spec.source_version or None, root="")
        yield from prove(source, deeper, on_begin=on_begin, is_cancelled=is_cancelled)


def record_proof(proof: Proof) -> str:
    """Record a proof in its dataset. Returns why this is not possible; usually empty."""
    try:
        open_ledger(proof.dataset).proofs.record(proof)
    except StoreError as error:
        return str(error)
    return ""


def parse_count(text: str) -> int:
    """Return the number of results to make again; 0 for `all`. Raises OptionError."""
    if text == "all":
        return 0
    if not text.isdecimal() or not int(text):
        raise OptionError(f"--execute {text}: expected a number of results, or all.")
    return int(text)


def _version(ledger: Ledger, dataset: str, wanted: int | str | None) -> Version:
    if wanted is not None:
        return ledger.versions.find(wanted)
    versions = ledger.versions.read_all()
    if not versions:
        raise OptionError(f"{dataset}: has no version yet. Run its job, which makes one.")
    return versions[-1]


@dataclass(frozen=True, kw_only=True)
class _Recorded:
    """The results of a version, and what made them.

    Attributes:
        ledger: The ledger.
        version: The version.
        spec: The settings of a run with its step.
        step: The step, as this machine has it.
        step_change: How it differs from the recorded one. Empty if it does not.
        root: The folder or URL of the inputs.
        records: The `ok` records of the version.
    """

    ledger: Ledger
    version: Version
    spec: RunSpec
    step: Step
    step_change: str
    root: str
    records: pa.Table

    @classmethod
    def read(
        cls, ledger: Ledger, dataset: str, version: Version, options: ProofOptions
    ) -> "_Recorded":
        described = ledger.steps.read(version.step)
        if described is None:
            raise OptionError(
                f"{dataset}: the step of version {version.number} is not recorded, so its results "
                "cannot be made again. Prove a version of a newer batchmill."
            )
        spec = _settings(ledger, dataset, version)
        # On another machine, the modules are in its working directory.
        search = spec.search if os.path.isdir(spec.search) else os.getcwd()
        step = _load_step(ledger, replace(spec, search=search), trusted=options.trust_step)
        change = ""
        if step.identity != version.step:
            # Another machine may have other optional modules, as a worker of a run may.
            found = differences_from_plan(step, described)
            change = f"the step differs here: {found[0]}" if found else ""
            step = replace(step, identity=version.step)
        records = records_of(ledger.all_records(_COLUMNS), version.number)
        is_ok = pc.equal(records["outcome"], "ok")
        is_listed = pc.not_equal(records["absence"].fill_null(""), WITHDRAWN)
        return cls(
            ledger=ledger,
            version=version,
            spec=replace(spec, search=search),
            step=step,
            step_change=change,
            root=options.root or spec.root,
            records=select(records, pc.and_(is_ok, is_listed)),
        )

    def chosen(self, count: int, seed: int) -> pa.Table:
        """Return the records of a random sample."""
        inputs = self.records.select(["input", "size"])
        results = Manifest(name="", root="", inputs=inputs, manifest_columns=pa.table({}))
        rows = pa.array(range(len(inputs)))
        return take(self.records, random_sample(results, rows, count or len(inputs), seed))

    def manifest(self, records: pa.Table) -> Manifest:
        """Return a manifest with the inputs of some records, as they are now."""
        if not is_url(self.root) and not os.path.isdir(self.root):
            raise OptionError(
                f"{self.root}: this folder of the inputs does not exist here. Give it with --root."
            )
        names = records["input"]
        if self.spec.source_dataset:
            return self._part_of_source(names)
        carried = (json.loads(text) for text in records["carried"].to_pylist())
        rows = [
            {**row, "input": name} for name, row in zip(names.to_pylist(), carried, strict=True)
        ]
        return load_manifest(
            # With its own types, pandas would change numbers and empty cells.
            pd.DataFrame(rows, dtype=object),
            file_columns=self.spec.file_columns,
            folders=self.spec.folders,
            root=self.root,
            allow_outside=True,
        )

    def _part_of_source(self, names: pa.ChunkedArray) -> Manifest:
        """Return the listed outputs of the dataset that this one was made from."""
        source, version = self.root, self.spec.source_version
        whole = load_manifest(f"{source}@{version}" if version else source)
        return part_of(whole, rows_of(names, whole.inputs["input"]).drop_null())

    def unlike_table(self, records: pa.Table) -> Iterator[tuple[str, ResultDifference]]:
        """Yield the inputs whose rows in the version's table are not those of their records.

        Only columns of the step are compared.
        """
        number = self.version.number
        table = read_published(self.ledger.store.url, version=number, stale=False).table
        table = table.filter(pc.is_in(table["input"], value_set=records["input"]))
        # The table has the order of its manifest. An input without rows is not in it.
        places = pc.index_in(records["input"], value_set=pc.unique(table["input"]))
        records = records.take(pc.sort_indices(places)).append_column(
            "position", pa.nulls(len(records), pa.int64())
        )
        nothing = Manifest(
            name="", root="", inputs=pa.table({"input": [""]}), manifest_columns=pa.table({})
        )
        made = metadata_table(records, nothing, self.spec.declared)
        names = table["input"].to_pylist()
        if made["input"].to_pylist() != names:
            counts = Counter(names)
            counts.subtract(made["input"].to_pylist())
            for name, count in counts.items():
                if count:
                    text = f"the table has {count:+,} rows beside its record"
                    yield name, ResultDifference("number of rows", text)
            return
        carried = set(json.loads(records["carried"][0].as_py())) if len(records) else set()
        for column in [name for name in table.column_names if name in made.column_names]:
            kind = table.schema.field(column).type
            # A column with values of several types is text. Dicts may have other keys elsewhere.
            if pa.types.is_string(kind) and not pa.types.is_string(made[column].type):
                continue
            try:
                pairs = (made[column].cast(kind).to_pylist(), table[column].to_pylist())
            except pa.ArrowException:
                continue
            for name, recorded, shown in zip(names, *pairs, strict=True):
                if recorded is None and column in carried:
                    continue  # The row has the manifest's value.
                if repr(recorded) != repr(shown):
                    text = f"{column}: {recorded} in its record, {shown} in the table"
                    yield name, ResultDifference(column, text)

    def job(self, manifest: Manifest, records: pa.Table) -> Prepared:
        """Return a job over the inputs of some records. Its pending inputs have changed."""
        spec, step = self.spec, self.step
        done = match_records(records, manifest.inputs)
        found = detect_changes(
            manifest, done.done, {step.identity}, self.ledger.store, folders=spec.folders
        )
        # A missing output is no reason not to make it again.
        criteria = Criteria(step.identity, changes=FileChanges(contents=found.contents))
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
                inputs=inputs,
                confinement=spec.confinement,
                failures=spec.policy,
            ),
            manifest=manifest,
            step=step,
            ledger=self.ledger,
            plan=make_plan(manifest, records, criteria, matched=done),
            ledger_state=(),
            step_changes=(),
        )


def _settings(ledger: Ledger, dataset: str, version: Version) -> RunSpec:
    """Return the settings of the run that published a version, or of another run of its step."""
    runs = ledger.runs()
    for run in sorted(runs, key=lambda run: (run != version.number, -run)):
        spec = read_spec(ledger, run)
        if spec.identity == version.step:
            return spec
    raise OptionError(
        f"{dataset}: the settings of the run that made version {version.number} were removed, so "
        "its results cannot be made again. Prove another version."
    )


def _load_step(ledger: Ledger, spec: RunSpec, *, trusted: bool) -> Step:
    """Load the step of a run. A step that cannot be imported was kept with the run."""
    name = pickled_step_name(ledger, spec.run)
    pickled = ledger.store.read(name) if ledger.store.exists(name) else b""
    if pickled and not trusted:
        raise OptionError(
            f"--execute: the step {spec.step} is in the dataset, not in a module, and would run "
            "with your rights. If you trust the authors of the dataset, add --trust-step."
        )
    digest = pickle_digest(pickled) if pickled else ""
    step = replace(load_planned_step(ledger, spec, digest).step, pickled=pickled)
    if step.kind == "items":
        raise OptionError(
            f"--execute: the step {spec.step} has one item per row of its manifest, so it cannot "
            "run on a sample. Run its job into another folder, and compare the tables."
        )
    return step


def _prove(
    dataset: str,
    recorded: _Recorded,
    options: ProofOptions,
    on_begin: Callable[[int], None],
    is_cancelled: Callable[[], bool],
) -> Proof:
    begun, started = time.time(), time.perf_counter()
    version = recorded.version
    seed = secrets.randbelow(2**31) if options.seed is None else options.seed
    records = recorded.chosen(options.count, seed)
    reasons: dict[str, str] = {}
    after: dict[str, dict[str, Any]] = {}
    if recorded.step_change:
        reasons = dict.fromkeys(records["input"].to_pylist(), recorded.step_change)
    else:
        job = recorded.job(recorded.manifest(records), records)
        reasons = _reasons(job, records)
        left = pa.array([name not in reasons for name in job.manifest.inputs["input"].to_pylist()])
        rows = pc.indices_nonzero(left)
        on_begin(len(rows))
        if len(rows):
            after = make_again(
                job,
                rows,
                ExecutionOptions(batch_size=recorded.spec.batch_size),
                recorded.spec.policy.model_copy(update={"max_failures": "100%", "expect": ()}),
                is_cancelled,
            )
    found = {
        record["input"]: list(differences(record, after.get(record["input"])))
        for record in records.to_pylist()
        if record["input"] not in reasons
    }
    table_fault = _table_fault(recorded.ledger, version)
    if not table_fault:
        for name, difference in recorded.unlike_table(records):
            found.setdefault(name, []).append(difference)
    different = sorted(name for name in found if found[name])
    counts = Counter(what for name in different for what in {one.what for one in found[name]})
    return Proof(
        dataset=dataset,
        version=version.number,
        names=sorted(
            n for n, to in recorded.ledger.versions.names().items() if to == version.number
        ),
        table=version.table,
        step=recorded.spec.step,
        results=len(recorded.records),
        sample=len(records),
        seed=seed,
        different=len(different),
        differences=[f"{n}: {found[n][0].text}" for n in islice(different, _SHOWN)],
        counts=dict(counts.most_common()),
        not_made=dict(sorted(Counter(reasons.values()).items(), key=lambda one: (-one[1], one[0]))),
        examples={reason: name for name, reason in reversed(reasons.items())},
        table_fault=table_fault,
        host=socket.gethostname(),
        python=platform.python_version(),
        packages=imported_packages(),
        created=begun,
        seconds=time.perf_counter() - started,
    )


def _reasons(job: Prepared, records: pa.Table) -> dict[str, str]:
    """Return why inputs cannot be made again, by input."""
    pending = zip(*(job.plan.pending[name].to_pylist() for name in ("input", "size")), strict=True)
    changed = {name: _MISSING if size == MISSING_SIZE else _CHANGED for name, size in pending}
    changed |= dict.fromkeys(job.plan.unreadable.to_pylist(), _MISSING)
    is_older = pc.not_equal(records["step"], job.step.identity)
    changed |= dict.fromkeys(records["input"].filter(is_older).to_pylist(), _OLDER)
    listed = set(job.manifest.inputs["input"].to_pylist())
    names = records["input"].to_pylist()
    found = {name: changed.get(name, "" if name in listed else _MISSING) for name in names}
    return {name: reason for name, reason in found.items() if reason}


def _table_fault(ledger: Ledger, version: Version) -> str:
    """Return how the table of a version differs from the published one, if it does."""
    data = if_exists(ledger.store.read, ledger.versions.table_name(version.number))
    if data is None:
        return "is missing"
    return "" if hash_bytes(data) == version.table else "was changed after it was published"
