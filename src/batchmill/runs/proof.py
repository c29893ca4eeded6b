"""Prove a dataset: make a random sample of its results again, and compare."""

import platform
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.open import open_ledger
from batchmill.core.ledger.proof_records import Proof
from batchmill.core.ledger.snapshots import Snapshot
from batchmill.core.manifest import Manifest
from batchmill.core.manifest.file_stats import MISSING_SIZE
from batchmill.core.planning.changed_libraries import LibraryChange, RecordedLibraries
from batchmill.core.planning.prepare import Prepared
from batchmill.core.storage import if_exists
from batchmill.core.user_step.code.files import imported_packages
from batchmill.datasets.publishing.metadata_table import metadata_table
from batchmill.datasets.reading.published import read_published
from batchmill.errors import LedgerError, OptionError, StoreError
from batchmill.runs.execute_again import ResultDifference, compare_again, count_kinds
from batchmill.runs.recorded_version import RecordedVersion

_SHOWN = 10
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
) -> Iterator[Proof]:
    """Make results of a version again on this machine, and compare them with its records.

    The step is imported here. Nothing is written.

    Args:
        dataset: The path or URL of the dataset.
        options: The part to prove, and the place of its inputs.
        on_begin: Called with the number of results to make, before they are made.

    Yields:
        The proof of the dataset. With `deep`, also those of the datasets that it was made from.

    Raises:
        OptionError: There is no such version, or its step or its results are unknown.
        StepError: The step cannot be loaded here.
        StoreError: A store cannot be read.
    """
    ledger = open_ledger(dataset)
    snapshots, wanted = ledger.snapshots, options.version
    version = snapshots.last_version() if wanted is None else snapshots.find(wanted)
    if version is None:
        raise OptionError(f"{dataset}: has no version yet. Run its job, which makes one.")
    recorded = RecordedVersion.read(
        ledger, dataset, version, root=options.root, trust_step=options.trust_step
    )
    yield _prove(dataset, recorded, options, on_begin)
    source = recorded.spec.source_dataset
    if options.deep and source:
        deeper = replace(options, version=recorded.spec.source_version or None, root="")
        yield from prove(source, deeper, on_begin=on_begin)


def record_proof(proof: Proof) -> str:
    """Record a proof in its dataset. Returns why this is not possible; usually empty."""
    ledger = open_ledger(proof.dataset)
    try:
        ledger.proofs.record(proof)
        # A proof may take hours, so it needs no lease.
        if proof.version not in ledger.snapshots.numbers():
            ledger.proofs.remove(proof.version)
            return f"a run has removed version {proof.version} meanwhile."
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


def _prove(
    dataset: str, recorded: RecordedVersion, options: ProofOptions, on_begin: Callable[[int], None]
) -> Proof:
    begun, started = time.time(), time.perf_counter()
    version = recorded.version
    seed = secrets.randbelow(2**31) if options.seed is None else options.seed
    records = recorded.chosen(options.count, seed)
    if not len(records):
        raise OptionError(f"{dataset}: version {version.number} has no result to make again.")
    reasons: dict[str, str] = {}
    differences: dict[str, list[ResultDifference]] = {}
    if recorded.step_change:
        reasons = dict.fromkeys(records["input"].to_pylist(), recorded.step_change)
    else:
        job = recorded.job(recorded.manifest(records), records)
        reasons = _reasons(job, records)
        left = pa.array([name not in reasons for name in job.manifest.inputs["input"].to_pylist()])
        rows = pc.indices_nonzero(left)
        on_begin(len(rows))
        if len(rows):
            differences = compare_again(job, rows, records)
    table_fault = _table_fault(recorded.ledger, version)
    if not table_fault:
        for name, difference in _unlike_table(recorded, records):
            differences.setdefault(name, []).append(difference)
    different = sorted(differences)
    counts = count_kinds(differences[name] for name in different)
    return Proof(
        dataset=dataset,
        version=version.number,
        names=sorted(
            n for n, to in recorded.ledger.snapshots.names().items() if to == version.number
        ),
        table=version.table,
        step=recorded.spec.step,
        results=len(recorded.state),
        sample=len(records),
        seed=seed,
        different=len(different),
        differences=[f"{n}: {differences[n][0].text}" for n in islice(different, _SHOWN)],
        counts=dict(counts.most_common()),
        not_made=dict(Counter(sorted(reasons.values())).most_common()),
        examples={reason: name for name, reason in reversed(reasons.items())},
        table_fault=table_fault,
        host=socket.gethostname(),
        python=platform.python_version(),
        packages=imported_packages(),
        created=begun,
        seconds=time.perf_counter() - started,
        libraries=[change.text for change in _library_changes(recorded, records)],
    )


def _library_changes(recorded: RecordedVersion, records: pa.Table) -> list[LibraryChange]:
    state, target = recorded.state.of(records["input"]), recorded.step and recorded.step.target
    return RecordedLibraries.read(state, records["step"].unique().to_pylist(), target).changes()


def _reasons(job: Prepared, records: pa.Table) -> dict[str, str]:
    """Return why inputs cannot be made again, by input."""
    pending = zip(*(job.plan.pending[name].to_pylist() for name in ("input", "size")), strict=True)
    changed = {name: _MISSING if size == MISSING_SIZE else _CHANGED for name, size in pending}
    changed |= dict.fromkeys(job.plan.unreadable.to_pylist(), _MISSING)
    is_older = pc.not_equal(records["step"], job.step.identity)
    changed |= dict.fromkeys(records["input"].filter(is_older).to_pylist(), _OLDER)
    listed = set(job.manifest.inputs["input"].to_pylist())
    names = records["input"].to_pylist()
    reasons = {name: changed.get(name, "" if name in listed else _MISSING) for name in names}
    return {name: reason for name, reason in reasons.items() if reason}


def _unlike_table(
    recorded: RecordedVersion, records: pa.Table
) -> Iterator[tuple[str, ResultDifference]]:
    """Yield the inputs whose rows in the version's table are not those of their records.

    Only columns of the step are compared.
    """
    number = recorded.version.number
    table = read_published(recorded.ledger.store.url, version=number, stale=False).table
    table = table.filter(pc.is_in(table["input"], value_set=records["input"]))
    # The table has the order of its manifest. An input without rows is not in it.
    places = pc.index_in(records["input"], value_set=pc.unique(table["input"]))
    records = records.take(pc.sort_indices(places)).append_column(
        "position", pa.nulls(len(records), pa.int64())
    )
    # Its columns have no values here, but a column of the same name gets another one, as `pack_`.
    schema = recorded.spec.manifest_schema
    nothing = Manifest(
        name="", root="", inputs=pa.table({"input": [""]}), manifest_columns=schema.empty_table()
    )
    # The keys of a sample may be fewer than the limit of columns, but those of the table more.
    made = metadata_table(records, nothing, recorded.spec.declared, table.column_names)
    names = table["input"].to_pylist()
    if made["input"].to_pylist() != names:
        counts = Counter(names)
        counts.subtract(made["input"].to_pylist())
        for name, count in counts.items():
            if count:
                text = f"the table has {count:+,} rows beside its record"
                yield name, ResultDifference("number of rows", text)
        return
    carried = set(schema.names)
    for column in [name for name in table.column_names if name in made.column_names]:
        kind = table.schema.field(column).type
        # A column with values of several types is text. Dicts may have other keys elsewhere.
        if pa.types.is_string(kind) and not pa.types.is_string(made[column].type):
            continue
        try:
            pairs = (made[column].cast(kind).to_pylist(), table[column].to_pylist())
        except pa.ArrowException:
            continue
        for name, made_value, shown in zip(names, *pairs, strict=True):
            if made_value is None and column in carried:
                continue  # The row has the manifest's value.
            if repr(made_value) != repr(shown):
                text = f"{column}: {made_value} in its record, {shown} in the table"
                yield name, ResultDifference(column, text)


def _table_fault(ledger: Ledger, version: Snapshot) -> str:
    """Return how the table of a version differs from the published one, if it does."""
    try:
        return "is missing" if if_exists(ledger.files.read_table, version) is None else ""
    except LedgerError:
        return "was changed after it was published"
