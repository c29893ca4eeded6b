"""List, name and compare the versions of a dataset."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchmill.core.layout import INPUT_COLUMN, OUTPUT_COLUMN, PARTITION_COLUMN
from batchmill.core.ledger.lease import lease
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.recorded_outputs import file_names, listed_outputs
from batchmill.core.ledger.snapshots import Snapshot
from batchmill.core.ledger.state import LIBRARIES, State, made_with
from batchmill.core.planning.changed_libraries import versions_in
from batchmill.core.planning.run_spec import spec_of
from batchmill.core.storage.large_tables import SLICE_ROWS, collected, select, slices, take
from batchmill.core.storage.name_search import repeated, rows_of
from batchmill.core.table_cells import texts_of

_INPUT, _STEP, _PARAMS, _ROW, _OTHER = "input", "step", "params", "row", "executed again"
_COLUMNS = ("input", "content", "etag", "step", "carried", "rows", "outputs")
# The other columns of an input's rows, as JSON text.
_GIVEN = pa.schema([("input", pa.string()), ("given", pa.string())])


class ListedVersion(NamedTuple):
    """One version, as users see it.

    Attributes:
        version: Its number.
        created: When it was published, in seconds since 1970.
        rows: The number of rows in its table.
        failures: The number of inputs that were not ok.
        step: The reference of its step.
        params: The step's keyword arguments.
        own_bytes: The size of the files that only this version has, in bytes.
        names: The names that keep it.
        table: The hash of its table.
        proof: The result of its last proof. Empty without one.
    """

    version: int
    created: float
    rows: int
    failures: int
    step: str
    params: Mapping[str, Any]
    own_bytes: int
    names: list[str]
    table: str
    proof: str


@dataclass(frozen=True, kw_only=True)
class VersionDiff:
    """The differences between two versions.

    Attributes:
        before: The first version.
        after: The second version.
        added: The inputs whose rows only the second version has.
        removed: The inputs whose rows only the first version has.
        changed: The inputs with other rows or files, by reason: "input" (its content changed),
            "step", "params", "libraries" (other versions of them), "row" (the manifest's other
            columns, or the partition), or "executed again".
        libraries: The libraries whose versions differ, each with those before and after.
    """

    before: Snapshot
    after: Snapshot
    added: Sequence[str]
    removed: Sequence[str]
    changed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    libraries: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)


def list_versions(ledger: Ledger) -> list[ListedVersion]:
    """Return the versions of a dataset in order. Raises LedgerError and StoreError."""
    versions = ledger.snapshots.versions()
    names = ledger.snapshots.names()
    states = (ledger.files.read_state(version).listed() for version in versions)
    own_sizes = _own_bytes([_files(state.records(["outputs"])) for state in states])
    proofs = {proof.version: proof.short for proof in ledger.proofs.read_all()}
    steps = [ledger.read_step(version.step) or {} for version in versions]
    return [
        ListedVersion(
            version=version.number,
            created=version.created,
            rows=version.rows,
            failures=version.failed,
            step=step.get("ref", ""),
            params=step.get("params", {}),
            own_bytes=size,
            names=sorted(name for name, number in names.items() if number == version.number),
            table=version.table,
            proof=proofs.get(version.number, ""),
        )
        for version, step, size in zip(versions, steps, own_sizes, strict=True)
    ]


def _files(records: pa.Table) -> pa.Table:
    """Return the name and the size of each output of some records."""
    sizes = pc.struct_field(listed_outputs(records), "size")
    return pa.table([file_names(records), sizes], ["name", "size"])


def _own_bytes(versions: Sequence[pa.Table]) -> list[int]:
    """Return the size of the files in each version that no other version has."""
    if not versions:
        return []
    every = pa.concat_tables(versions)
    is_own = np.ones(len(every), bool)
    is_own[repeated(every["name"])[0]] = False
    sizes = np.where(is_own, every["size"].to_numpy(), 0)
    ends = np.cumsum([len(files) for files in versions])
    return [int(part.sum()) for part in np.split(sizes, ends[:-1])]


def keep_version(ledger: Ledger, version: int | str, name: str) -> Snapshot:
    """Give a version a name, so that no run removes it.

    Raises:
        OptionError: The name cannot be used, or there is no such version.
        LedgerError: A run is using the dataset.
    """
    with lease(ledger) as held:
        snapshot = ledger.snapshots.keep(name, version)
        held.clean_end = held.clean
    return snapshot


def drop_name(ledger: Ledger, name: str) -> None:
    """Remove the name of a version. The next run may remove the version.

    Raises:
        OptionError: There is no such name.
        LedgerError: A run is using the dataset.
    """
    with lease(ledger) as held:
        ledger.snapshots.drop(name)
        held.clean_end = held.clean


def compare_versions(ledger: Ledger, before: int | str, after: int | str) -> VersionDiff:
    """Return the differences between two versions.

    Args:
        ledger: The ledger of the dataset.
        before: The number or name of a version.
        after: The number or name of another version.

    Raises:
        OptionError: There is no such version.
        LedgerError: The ledger is damaged, also the table of a version.
        StoreError: A file of the ledger is missing.
    """
    first, second = ledger.snapshots.find(before), ledger.snapshots.find(after)
    old, new = (_results(ledger, version) for version in (first, second))
    rows = rows_of(old["input"], new["input"])
    is_added = np.ones(len(new), bool)
    is_added[rows.drop_null().to_numpy()] = False
    changed: dict[str, list[str]] = {}
    for parts in zip(slices(old), slices(take(new, rows)), strict=True):
        differs = reduce(pc.or_, map(pc.not_equal, *map(_compared, parts)))
        pairs = zip(*(part.filter(differs).to_pylist() for part in parts), strict=True)
        for was, now in pairs:
            changed.setdefault(_reason(ledger, was, now), []).append(was["input"])
    return VersionDiff(
        before=first,
        after=second,
        added=sorted(select(new.select(["input"]), is_added)["input"].to_pylist()),
        removed=sorted(select(old.select(["input"]), rows.is_null())["input"].to_pylist()),
        changed={reason: sorted(names) for reason, names in changed.items()},
        libraries=_other_libraries(
            *(ledger.files.read_state(version) for version in (first, second))
        ),
    )


def _other_libraries(before: State, after: State) -> dict[str, list[list[str]]]:
    old, new = versions_in(before), versions_in(after)
    both = {name: [[*side.get(name, ())] for side in (old, new)] for name in sorted({*old, *new})}
    return {name: versions for name, versions in both.items() if versions[0] != versions[1]}


def _results(ledger: Ledger, version: Snapshot) -> pa.Table:
    """Return the results in the table of a version, a row for each input."""
    table = pq.ParquetFile(pa.BufferReader(ledger.files.read_table(version)))
    state = ledger.files.read_state(version)
    texts = pa.array([*state.libraries], pa.string())
    numbers = made_with(state.table).combine_chunks()
    sets = pa.DictionaryArray.from_arrays(numbers, texts)  # The numbers of two states differ.
    results = state.records(_COLUMNS).append_column(LIBRARIES, sets)
    given = collected(_given(version, table), _GIVEN)
    rows = rows_of(results["input"], given["input"])
    results, given = select(results, rows.is_valid()), take(given, rows.drop_null())
    return results.append_column("given", given["given"])


def _compared(results: pa.Table) -> list[pa.ChunkedArray | pa.Array]:
    """Return the columns that differ if a result has changed. A path names a content."""
    listed = results["outputs"].to_pylist()
    paths = [json.dumps([file["path"] for file in files or ()]) for files in listed]
    return [results["rows"], pa.array(paths, pa.string()), results["given"]]


def _given(version: Snapshot, table: pq.ParquetFile) -> Iterator[pa.Table]:
    """Yield the manifest's columns and the partition of each input in the table of a version.

    They are one text for each input. They may change although the input is not executed again.
    """
    spec, known = spec_of(version.settings), table.schema_arrow.names
    names = {*spec.manifest_schema.names, *([PARTITION_COLUMN] if spec.has_partitions else [])}
    chosen = [name for name in known if name in names - {INPUT_COLUMN, OUTPUT_COLUMN}]
    last = None
    for batch in table.iter_batches(SLICE_ROWS, columns=[INPUT_COLUMN, *chosen]):
        frame = batch.to_pandas().drop_duplicates(INPUT_COLUMN)
        frame = frame[frame[INPUT_COLUMN] != last]  # The rows of an input are next to each other.
        last = batch[INPUT_COLUMN][-1].as_py()
        # A new row with an empty cell may change whole numbers into floats.
        columns = {name: texts_of(frame[name]) for name in chosen}
        given = [
            json.dumps({name: texts[row] for name, texts in columns.items() if texts[row]})
            for row in range(len(frame))
        ]
        yield pa.table([frame[INPUT_COLUMN].tolist(), given], schema=_GIVEN)


def _reason(ledger: Ledger, was: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    # The content of an input that its step read in parts is unknown.
    kind = "content" if was["content"] and now["content"] else "etag"
    if (was[kind] or "") != (now[kind] or ""):
        return _INPUT
    if was["step"] != now["step"]:
        old, new = (ledger.read_step(result["step"]) or {} for result in (was, now))
        same_code = {**old, "params": None} == {**new, "params": None}
        return _PARAMS if old and same_code else _STEP
    if was[LIBRARIES] != now[LIBRARIES]:
        return LIBRARIES
    is_row = was["carried"] != now["carried"] or _own_given(was) != _own_given(now)
    return _ROW if is_row else _OTHER


def _own_given(result: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of the manifest that no value of the first row replaces."""
    keys = {key for row in json.loads(result["rows"])[:1] for key in row}
    return {name: text for name, text in json.loads(result["given"]).items() if name not in keys}
