"""List, name and compare the versions of a dataset."""

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchmill.cells import texts_of
from batchmill.errors import StoreError
from batchmill.layout import INPUT_COLUMN, MORE_COLUMNS, OUTPUT_COLUMN
from batchmill.ledger.lease import lease
from batchmill.ledger.ledger import Ledger
from batchmill.ledger.parts import file_names
from batchmill.ledger.table_metadata import TableMetadata
from batchmill.ledger.versions import Version, records_of
from batchmill.storage.fingerprints import hash_bytes

_INPUT, _STEP, _PARAMS, _ROW, _OTHER = "input", "step", "params", "row", "executed again"
_COLUMNS = ("input", "outcome", "content", "etag", "step", "carried", "rows", "outputs")


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


@dataclass(frozen=True, kw_only=True)
class VersionDiff:
    """The differences between two versions.

    Attributes:
        before: The first version.
        after: The second version.
        added: The inputs whose rows only the second version has.
        removed: The inputs whose rows only the first version has.
        changed: The inputs with other rows or files, by reason: "input" (its content changed),
            "step", "params", "row" (the manifest's other columns, or the partition), or "executed
            again".
    """

    before: Version
    after: Version
    added: Sequence[str]
    removed: Sequence[str]
    changed: Mapping[str, Sequence[str]] = field(default_factory=dict)


def list_versions(ledger: Ledger) -> list[ListedVersion]:
    """Return the versions of a dataset in order. Raises LedgerError and StoreError."""
    versions = ledger.versions.read_all()
    names = ledger.versions.names()
    records = ledger.all_records(["outputs"])
    frames = []
    for version in versions:
        found = records_of(records, version.number)
        sizes = pc.struct_field(pc.list_flatten(found["outputs"]), "size")
        frames.append(
            pd.DataFrame({"name": file_names(found).to_pandas(), "size": sizes.to_pandas()})
        )
    every = pd.concat(frames, keys=[v.number for v in versions]) if frames else pd.DataFrame()
    own = every[~every["name"].duplicated(keep=False)] if frames else every
    totals = own["size"].groupby(level=0).sum().to_dict() if len(own) else {}
    listed = []
    for version in versions:
        described = ledger.steps.read(version.step) or {}
        listed.append(
            ListedVersion(
                version=version.number,
                created=version.created,
                rows=version.rows,
                failures=version.failed,
                step=described.get("ref", ""),
                params=described.get("params", {}),
                own_bytes=int(totals.get(version.number, 0)),
                names=sorted(name for name, number in names.items() if number == version.number),
                table=version.table,
            )
        )
    return listed


def keep_version(ledger: Ledger, version: int | str, name: str) -> Version:
    """Give a version a name, so that no run removes it.

    Raises:
        OptionError: The name cannot be used, or there is no such version.
        LedgerError: A run is using the dataset.
    """
    with lease(ledger) as held:
        found = ledger.versions.find(version)
        ledger.versions.keep(name, found.number)
        held.clean_end = held.clean
    return found


def drop_name(ledger: Ledger, name: str) -> None:
    """Remove the name of a version. The next run may remove the version.

    Raises:
        OptionError: There is no such name.
        LedgerError: A run is using the dataset.
    """
    with lease(ledger) as held:
        ledger.versions.drop(name)
        held.clean_end = held.clean


def compare_versions(ledger: Ledger, before: int | str, after: int | str) -> VersionDiff:
    """Return the differences between two versions.

    Args:
        ledger: The ledger of the dataset.
        before: The number or name of a version.
        after: The number or name of another version.

    Raises:
        OptionError: There is no such version.
        LedgerError: The ledger is damaged.
        StoreError: The table of a version is missing or damaged.
    """
    first, second = ledger.versions.find(before), ledger.versions.find(after)
    records = ledger.all_records(_COLUMNS)
    old, new = (_results(ledger, records, version) for version in (first, second))
    both = old.merge(new, left_index=True, right_index=True, suffixes=("_old", "_new"))
    compared = [both[f"{name}_old"] != both[f"{name}_new"] for name in ("rows", "paths", "given")]
    differs = compared[0] | compared[1] | compared[2]
    changed: dict[str, list[str]] = {}
    for row in both[differs].itertuples():
        changed.setdefault(_reason(ledger, row), []).append(str(row.Index))
    return VersionDiff(
        before=first,
        after=second,
        added=sorted(new.index.difference(old.index)),
        removed=sorted(old.index.difference(new.index)),
        changed={reason: sorted(names) for reason, names in changed.items()},
    )


def _results(ledger: Ledger, records: pa.Table, version: Version) -> pd.DataFrame:
    """Return the results in the table of a version, by input."""
    table = ledger.versions.table_name(version.number)
    data = ledger.store.read(table)
    if hash_bytes(data) != version.table:
        raise StoreError(
            ledger.store.url_of(table),
            "differs from the table that was published. Compare other versions, or restore it from "
            "a backup.",
        )
    file = pq.ParquetFile(pa.BufferReader(data))
    found = records_of(records, version.number)
    keys = {key for text in found["rows"].to_pylist() for row in json.loads(text) for key in row}
    given = _given(file, keys)
    found = found.filter(pc.is_in(found["input"], value_set=pa.array(given.index, pa.string())))
    frame = found.select(["input", "content", "etag", "step", "carried", "rows"]).to_pandas()
    frame["etag"] = frame["etag"].fillna("")
    frame["paths"] = [
        json.dumps([file["path"] for file in files]) for files in found["outputs"].to_pylist()
    ]
    indexed: pd.DataFrame = frame.set_index("input")
    indexed["given"] = given
    return indexed


def _given(table: pq.ParquetFile, keys: Set[str]) -> pd.Series:
    """Return the columns of each input in a table, without those of the step, as one text.

    These are the other columns of the manifest, and the partition. They may change although the
    input is not executed again.
    """
    schema = table.schema_arrow
    others = keys | TableMetadata.of(schema).added | {INPUT_COLUMN, OUTPUT_COLUMN, MORE_COLUMNS}
    names = [name for name in schema.names if name not in others]
    frame = table.read(columns=[INPUT_COLUMN, *names]).to_pandas().drop_duplicates(INPUT_COLUMN)
    # A new row with an empty cell may change whole numbers into floats.
    columns = {name: texts_of(frame[name]) for name in names}
    return pd.Series(
        [
            json.dumps({name: texts[row] for name, texts in columns.items() if texts[row]})
            for row in range(len(frame))
        ],
        frame[INPUT_COLUMN],
        object,
    )


def _reason(ledger: Ledger, row: Any) -> str:
    # The content of an input that its step read in parts is unknown.
    is_known = row.content_old and row.content_new
    if row.content_old != row.content_new if is_known else row.etag_old != row.etag_new:
        return _INPUT
    if row.step_old != row.step_new:
        old, new = (ledger.steps.read(one) or {} for one in (row.step_old, row.step_new))
        same_code = {**old, "params": None} == {**new, "params": None}
        return _PARAMS if old and same_code else _STEP
    is_row = (row.carried_old, row.given_old) != (row.carried_new, row.given_new)
    return _ROW if is_row else _OTHER
