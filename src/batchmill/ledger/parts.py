"""The format of a ledger's parts, and the rule which record wins if an input has several.

A part is a Parquet file. Each row is a record: the outcome of an input, and its origin. A part is
never changed after it is written. Its name ends with a hash of its content, so that damage is
detected.
"""

import io
from collections.abc import Container, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from xxhash import xxh3_64_hexdigest

from batchmill.errors import LedgerError
from batchmill.layout import FILES, PACKS
from batchmill.outcome import Outcome
from batchmill.storage import Store
from batchmill.storage.large_tables import Column, select
from batchmill.storage.name_search import repeated, rows_of

VERSION = 4
# The outcome of an input that the manifest no longer lists and that was removed on request.
PRUNED = "pruned"
# The absence of an input that the last manifest does not list.
WITHDRAWN = "withdrawn"
# The absence of an input with an earlier result whose file cannot be found. It is its outcome, too.
MISSING = "missing"
_RESULT_STAYS = "Its earlier result stays in the dataset."
_OK = "ok"
# The columns that decide which record wins.
KEYS = ["input", "outcome", "run", "attempt"]
# Matches a path with a NUL, or with a part that is empty, "." or "..".
_LEADS_OUT = r"(^|/)\.{0,2}(/|$)|\x00"

_FILE = pa.struct(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("content", pa.string()),
        # The address in a pack; null for a file at `path`. Parts of older versions have no such
        # field.
        ("pack", pa.string()),
    ]
)
PART_SCHEMA = pa.schema(
    [
        ("input", pa.string()),
        ("input_id", pa.string()),
        ("outcome", pa.string()),
        ("attempts", pa.int32()),
        ("seconds", pa.float64()),
        ("finished_at", pa.float64()),
        ("host", pa.string()),
        ("rows", pa.string()),
        ("outputs", pa.list_(_FILE)),
        ("error", pa.string()),
        ("message", pa.string()),
        ("traceback", pa.string()),
        ("log", pa.string()),
        # The outcome depends on the input's content, the manifest's row and the step.
        ("size", pa.int64()),
        ("mtime_ns", pa.int64()),
        ("etag", pa.string()),
        # Parts of older versions have no such column.
        ("ctime_ns", pa.int64()),
        ("content", pa.string()),
        ("carried", pa.string()),
        ("step", pa.string()),
        ("run", pa.int32()),
        # Parts of older versions have no such column.
        ("attempt", pa.int32()),
        # The run whose rows and outputs an input keeps that is not ok now. Usually null.
        ("result_run", pa.int32()),
        # The digest of the input's companions; null without any.
        ("companions", pa.string()),
        # WITHDRAWN or MISSING; null for an input that is there. Parts of older versions have no
        # such column.
        ("absence", pa.string()),
    ],
    metadata={"batchmill.ledger": str(VERSION)},
)

# An Arrow array holds at most 2 GiB of text of the type string. The records of all parts may have
# more in these columns, and a sort joins them.
_LONG_TEXTS = {"rows", "carried", "message", "traceback", "log"}
RECORDS_SCHEMA = pa.schema(
    field.with_type(pa.large_string()) if field.name in _LONG_TEXTS else field
    for field in PART_SCHEMA
)


def records_schema(columns: Container[str]) -> pa.Schema:
    """Return the schema of some columns of the records of several parts."""
    return pa.schema([field for field in RECORDS_SCHEMA if field.name in columns])


class Origin(NamedTuple):
    """The origin of an outcome: the data that it depends on, besides the input's file.

    Attributes:
        carried: The other columns of the manifest's row, as a JSON object.
        step: The identity of the step.
        run: The number of the run.
        attempt: The number of the attempt at the shard. A later attempt begins only when the
            earlier one counts as lost.
    """

    carried: str
    step: str
    run: int
    attempt: int = 1


def as_part(records: Sequence[tuple[Outcome, Origin]]) -> pa.Table:
    """Return records as a table with the columns of `PART_SCHEMA`.

    Args:
        records: The outcomes, at least one, each with its origin.
    """
    outcomes, origins = zip(*records, strict=True)
    fields = dict(zip(Outcome._fields, zip(*outcomes, strict=True), strict=True))
    fields |= dict(zip(Origin._fields, zip(*origins, strict=True), strict=True))
    fields["outcome"] = fields.pop("kind")
    fields["result_run"] = fields["absence"] = (None,) * len(outcomes)
    columns = [pa.array(fields[field.name], field.type) for field in PART_SCHEMA]
    return pa.Table.from_arrays(columns, schema=PART_SCHEMA)


def write_hashed(store: Store, name: str, table: pa.Table) -> None:
    """Write a table, such as a part, to a file of the store whose name ends with its hash.

    Args:
        store: The store of the dataset.
        name: The name of the file in the store, without the hash and the suffix.
        table: The table. That of a part has the schema `PART_SCHEMA`.

    Raises:
        StoreError: The file cannot be written.
    """
    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd")
    data = file.getvalue()
    store.write(f"{name}-{xxh3_64_hexdigest(data)}.parquet", data)


def read_part(store: Store, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a part from a file of the store.

    Args:
        store: The store of the dataset.
        name: The name of the file in the store.
        columns: The columns to read; all by default.

    Returns:
        The records, with the types of RECORDS_SCHEMA. A part of an older version has fewer columns,
        and outputs with fewer fields. These are null.

    Raises:
        LedgerError: The part is damaged or foreign, or names outputs outside the dataset.
        StoreError: The file cannot be read.
    """
    place = store.url_of(name)
    schema = records_schema(RECORDS_SCHEMA.names if columns is None else columns)
    try:
        with store.open(name) as source:
            data = source.read_buffer()
        if not name.endswith(f"-{xxh3_64_hexdigest(data)}.parquet"):
            raise LedgerError(
                f"{place}: is damaged, or is not a part of a ledger. Its content does not match "
                "the hash in its name. Move it away, and run the same command again. Its inputs "
                "then run again."
            )
        file = pq.ParquetFile(pa.BufferReader(data))
        if (file.schema_arrow.metadata or {}).get(b"batchmill.ledger") != str(VERSION).encode():
            raise LedgerError(f"{place}: is not a part of a ledger of version {VERSION}.")
        whole = [schema.empty_table(), file.read(columns=schema.names)]
        table = pa.concat_tables(whole, promote_options="permissive").cast(schema)
    except (OSError, pa.ArrowException) as error:
        raise LedgerError(
            f"{place}: cannot be read ({error}). Move it away, and run the same command again. "
            "Its inputs then run again."
        ) from error
    outside = _first_outside(table)
    if outside is not None:
        raise LedgerError(
            f"{place}: names {outside!r}, which is outside the folder of the outputs. The file "
            "is damaged or malicious; nothing was changed. Move it away, and run the same command "
            "again."
        )
    return table


def file_names(records: pa.Table) -> pa.Array:
    """Return the name of each output of some records in the store: its address, or its path."""
    files = pc.list_flatten(records["outputs"]).combine_chunks()
    return pc.coalesce(files.field("pack"), files.field("path"))


def packed_paths(records: pa.Table) -> dict[str, str]:
    """Return the path of each output of some records that is in a pack, by its address."""
    files = pc.list_flatten(records["outputs"]).combine_chunks()
    files = files.filter(pc.is_valid(files.field("pack")))
    addresses = files.field("pack").to_pylist()
    return dict(zip(addresses, files.field("path").to_pylist(), strict=True))


def addresses_of(names: pa.Array, records: pa.Table) -> pa.Array:
    """Return the address of each file that is in a pack now, null for other files.

    Args:
        names: The paths of files in a dataset.
        records: All records of the dataset, with the columns `run` and `outputs`.
    """
    newest = records.select(["run", "outputs"]).sort_by([("run", "descending")])
    files = pc.list_flatten(newest["outputs"]).combine_chunks()
    paths = files.field("path").cast(names.type)
    return files.field("pack").cast(names.type).take(pc.index_in(names, value_set=paths))


def _first_outside(table: pa.Table) -> str | None:
    """Return a name in a part that points outside the outputs; None if all names are inside.

    A dataset may come from another person. A run opens and removes the files that the parts name.
    """
    outside = []
    if "input_id" in table.column_names:
        ids = table["input_id"]
        outside.append(ids.filter(pc.match_substring_regex(ids, f"{_LEADS_OUT}|/")))
    if "outputs" in table.column_names:
        for names, folder in (
            (pc.struct_field(pc.list_flatten(table["outputs"]), "path"), FILES),
            (pc.struct_field(pc.list_flatten(table["outputs"]), "pack").drop_null(), PACKS),
        ):
            is_inside = pc.starts_with(names, f"{folder}/")
            leads_out = pc.or_(pc.invert(is_inside), pc.match_substring_regex(names, _LEADS_OUT))
            outside.append(names.filter(leads_out))
    return next((name for names in outside for name in names.to_pylist()), None)


def current_records(records: pa.Table) -> pa.Table:
    """Return the winning record of each input that was not removed.

    Args:
        records: Records of any number of parts.
    """
    is_there = pc.not_equal(records["outcome"], PRUNED)
    stays = winning_rows(records.select(KEYS)) & np.asarray(is_there)
    return records if stays.all() else select(records, stays)


def with_inputs(records: pa.Table, names: Column) -> pa.Table:
    """Return the records of some inputs."""
    return select(records, rows_of(records["input"], names).is_valid())


def listed_records(records: pa.Table) -> pa.Table:
    """Return the records of the inputs that the manifest of the last run lists.

    An input whose file cannot be found is `missing`, although its record has an earlier result.

    Args:
        records: The winning records, with the column `absence`.
    """
    records = records.filter(pc.not_equal(records["absence"].fill_null(""), WITHDRAWN))
    is_missing = pc.equal(records["absence"], MISSING).fill_null(False)
    now: dict[str, Any] = {"outcome": MISSING, "error": "FileNotFoundError", "size": -1}
    if "message" in records.column_names:
        stays, space = (pa.scalar(text, pa.large_string()) for text in (_RESULT_STAYS, " "))
        now["message"] = pc.binary_join_element_wise(records["message"], stays, space)
    if {"result_run", "run", "attempts"} <= {*records.column_names}:
        # A record without attempts was written again by a later run.
        own = pc.and_(is_missing, pc.greater(records["attempts"], 0))
        is_own = pc.and_(own, records["result_run"].is_null())
        shown = pc.if_else(is_own, records["run"], records["result_run"])
        place = records.schema.get_field_index("result_run")
        records = records.set_column(place, "result_run", shown)
    for place, name in enumerate(records.column_names):
        if name in now:
            column = pc.if_else(is_missing, now[name], records[name])
            records = records.set_column(place, name, column)
    return records


def has_result(records: pa.Table) -> pa.ChunkedArray:
    """Return which records have rows and outputs: of this run, or of the `result_run`."""
    return pc.or_(pc.equal(records["outcome"], _OK), pc.is_valid(records["result_run"]))


def winning_rows(records: pa.Table) -> np.ndarray:
    """Return which records win: one of each input.

    The record of the latest run wins. Within a run, an `ok` or `pruned` record wins over others:
    the attempt on a node that was counted as lost may fail after another attempt has succeeded.
    Then the record of the latest attempt wins, then the last one in the table. No clock decides.

    Args:
        records: Records of any number of parts, with the columns KEYS.
    """
    rows, numbers = repeated(records["input"])
    wins = np.ones(len(records), bool)
    if not len(rows):
        return wins
    found = records.select(["outcome", "run", "attempt"]).take(pa.array(rows))
    is_good = pc.is_in(found["outcome"], value_set=pa.array([_OK, PRUNED]))
    attempts, runs = found["attempt"].fill_null(0).to_numpy(), found["run"].to_numpy()
    # The last key is the most important one.
    order = np.lexsort((rows, attempts, np.asarray(is_good), runs, numbers))
    is_last = np.append(np.diff(numbers[order]) != 0, True)
    wins[rows] = False
    wins[rows[order[is_last]]] = True
    return wins
