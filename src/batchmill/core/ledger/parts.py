"""The format of a ledger's parts.

A part is a Parquet file. Each row is a record: the outcome of an input, and its origin. A part is
never changed after it is written. Its name ends with a hash of its content, so that damage is
detected.
"""

import io
from collections.abc import Container, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from xxhash import xxh3_64_hexdigest

from batchmill.core.layout import FILES, PACKS, PARTS
from batchmill.core.outcome import Outcome
from batchmill.core.storage import Store, in_threads
from batchmill.core.storage.large_tables import SLICE_ROWS, Column, collected, take
from batchmill.errors import LedgerError

VERSION = 7
# About this number of records is in memory while parts are read.
_ROWS_AT_A_TIME = 4 * SLICE_ROWS
# Matches a path with a NUL, or with a part that is empty, "." or "..".
_LEADS_OUT = r"(^|/)\.{0,2}(/|$)|\x00"

_FILE = pa.struct(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("content", pa.string()),
        # The address in a pack; null for a file at `path`.
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
        ("ctime_ns", pa.int64()),
        ("content", pa.string()),
        ("carried", pa.string()),
        ("step", pa.string()),
        ("run", pa.int32()),
        ("attempt", pa.int32()),
        # The digest of the input's companions; null without any.
        ("companions", pa.string()),
        # The versions of the libraries that the step had imported, as a JSON object.
        ("libraries", pa.dictionary(pa.int32(), pa.string())),
    ],
    metadata={"batchmill.ledger": str(VERSION)},
)

# An Arrow array holds at most 2 GiB of text of the type string. The records of all parts may have
# more in these columns, and a sort joins them.
_LONG_TEXTS = {"rows", "carried", "message", "traceback", "log"}
_READ_SCHEMA = pa.schema(
    field.with_type(pa.large_string()) if field.name in _LONG_TEXTS else field
    for field in PART_SCHEMA
)


def schema_of(columns: Container[str]) -> pa.Schema:
    """Return the schema of some columns of the records of several parts."""
    return pa.schema([field for field in _READ_SCHEMA if field.name in columns])


class Origin(NamedTuple):
    """The origin of an outcome: the data that it depends on, besides the input's file.

    Attributes:
        carried: The other columns of the manifest's row, as a JSON object.
        step: The identity of the step.
        run: The number of the run.
        attempt: The number of the attempt at the shard. A later attempt begins only when the
            earlier one counts as lost.
        libraries: The versions of the libraries that the step had imported, as a JSON object.
    """

    carried: str
    step: str
    run: int
    attempt: int = 1
    libraries: str = "{}"


def as_part(records: Sequence[tuple[Outcome, Origin]]) -> pa.Table:
    """Return records as a table with the columns of `PART_SCHEMA`.

    Args:
        records: The outcomes, at least one, each with its origin.
    """
    outcomes, origins = zip(*records, strict=True)
    fields = dict(zip(Outcome._fields, zip(*outcomes, strict=True), strict=True))
    fields |= dict(zip(Origin._fields, zip(*origins, strict=True), strict=True))
    fields["outcome"] = fields.pop("kind")
    columns = [pa.array(fields[field.name], field.type) for field in PART_SCHEMA]
    return pa.Table.from_arrays(columns, schema=PART_SCHEMA)


def write_hashed(store: Store, name: str, table: pa.Table) -> str:
    """Write a table, such as a part, to a file of the store whose name ends with its hash.

    Args:
        store: The store of the dataset.
        name: The name of the file in the store, without the hash and the suffix.
        table: The table. That of a part has the schema `PART_SCHEMA`.

    Returns:
        The name of the file.

    Raises:
        StoreError: The file cannot be written.
    """
    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd")
    data = file.getvalue()
    name = f"{name}-{xxh3_64_hexdigest(data)}.parquet"
    store.write(name, data)
    return name


def read_parts(store: Store, names: Sequence[str], columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the records of parts, a table for each part. In a bucket, several are read at a time.

    Raises the errors of `read_part`.
    """
    count, start = store.threads, 0
    read = partial(read_part, store, columns=columns)
    while start < len(names):
        places = [f"{PARTS}/{name}" for name in names[start : start + count]]
        tables = in_threads(read, places, store.threads)
        start += count
        # A merged part is large, so the first ones show how many are read at a time.
        largest = max(1, *map(len, tables))
        count = max(1, min(store.threads, _ROWS_AT_A_TIME // largest))
        while tables:
            yield tables.pop(0)


def read_part(store: Store, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a part from a file of the store.

    Args:
        store: The store of the dataset.
        name: The name of the file in the store.
        columns: The columns to read; all by default.

    Returns:
        The records, with the types that `schema_of` returns.

    Raises:
        LedgerError: The part is damaged or foreign, or names outputs outside the dataset.
        StoreError: The file cannot be read.
    """
    place = store.url_of(name)
    schema = schema_of(PART_SCHEMA.names if columns is None else columns)
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
        table = file.read(columns=schema.names).select(schema.names).cast(schema)
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


def fetch(
    store: Store, parts: Sequence[str], part: Column, row: Column, columns: Sequence[str]
) -> pa.Table:
    """Return columns of some records, in any order.

    Args:
        store: The store of the dataset.
        parts: The names of parts.
        part: The number of the part of each record.
        row: Its row in the part.
        columns: Columns of PART_SCHEMA.

    Raises the errors of `read_part`.
    """
    schema = schema_of(columns)
    if not len(part):
        return schema.empty_table()
    numbers, rows = part.to_numpy(), row.to_numpy()
    order = np.lexsort((rows, numbers))
    used, starts = np.unique(numbers[order], return_index=True)
    groups = np.split(rows[order], starts[1:])
    tables = read_parts(store, [parts[number] for number in used], schema.names)
    records = collected(
        (table.take(pa.array(group)) for table, group in zip(tables, groups, strict=True)), schema
    )
    if (np.diff(order) == 1).all():
        return records
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return take(records, pa.array(back))


def _first_outside(table: pa.Table) -> str | None:
    """Return a name in a part that points outside the outputs; None if all names are inside.

    A dataset may come from another person. A run opens and removes the files that the parts name.
    """
    if "outputs" not in table.column_names:
        return None
    files = pc.list_flatten(table["outputs"])
    for field, folder in (("path", FILES), ("pack", PACKS)):
        names = pc.struct_field(files, field).drop_null()
        is_inside = pc.starts_with(names, f"{folder}/")
        leads_out = pc.or_(pc.invert(is_inside), pc.match_substring_regex(names, _LEADS_OUT))
        if pc.any(leads_out).as_py():
            return str(names.filter(leads_out)[0])
    return None
